"""Writes tests/ring/beam_search.json: what transformers' beam search makes of some prompts, in float32.

python -m tests.ring.beam_reference
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.ring.client import BARD, BARD_DIR
from tests.tiny_llama import write_tiny_llama

TARGET = Path(__file__).with_name("beam_search.json")
TINY = "tiny"
PAD = -1

CASES: list[tuple[str, str | list[int], dict[str, Any]]] = [
    (TINY, [5, 6, 7], {"n": 3, "max_tokens": 12, "length_penalty": 0.0, "stop_token_ids": [134, 164, 218]}),
    (TINY, [*range(40, 75)], {"n": 2, "max_tokens": 10}),
    (TINY, [*range(40, 75)], {"n": 4, "max_tokens": 12, "early_stopping": True, "stop_token_ids": [12, 36, 191]}),
    (TINY, [9], {"n": 5, "max_tokens": 9, "length_penalty": -1.0, "stop_token_ids": [48, 155, 176]}),
    (TINY, [9], {"n": 4, "max_tokens": 9, "length_penalty": 2.0, "early_stopping": "never"}),
    (BARD, "ROMEO:", {"n": 2, "max_tokens": 16}),
    (BARD, "What is the", {"n": 4, "max_tokens": 12, "stop_token_ids": [12], "early_stopping": True}),
]
"""Model, prompt and fields of the request."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_llama(Path(folder))
        dirs = {TINY: folder, BARD: str(BARD_DIR)}
        models = {name: AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for name, path in dirs.items()}
        tokenizers = {name: AutoTokenizer.from_pretrained(path) for name, path in dirs.items()}
        lines = [_case(models[name], tokenizers[name], name, prompt, fields) for name, prompt, fields in CASES]
    TARGET.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def _case(model: Any, tokenizer: Any, name: str, prompt: str | list[int], fields: dict[str, Any]) -> str:
    provided = tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
    own_end = model.config.eos_token_id
    ids = torch.tensor([provided])
    with torch.inference_mode():
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=fields["n"],
            num_return_sequences=fields["n"],
            max_new_tokens=fields["max_tokens"],
            length_penalty=fields.get("length_penalty", 1.0),
            early_stopping=fields.get("early_stopping", False),
            eos_token_id=[*fields.get("stop_token_ids", ()), *([] if own_end is None else [own_end])] or None,
            pad_token_id=PAD,
        )
    beams = [[token_id for token_id in row if token_id != PAD] for row in found[:, len(provided) :].tolist()]
    prompt_text = tokenizer.decode(provided)
    texts: list[str] = []
    for beam in beams:
        shown = beam[:-1] if beam[-1] in (own_end, *fields.get("stop_token_ids", ())) else beam
        texts.append(
            tokenizer.decode([*provided, *shown], clean_up_tokenization_spaces=False).removeprefix(prompt_text)
        )
    return json.dumps({"model": name, "prompt": prompt, "fields": fields, "beams": beams, "texts": texts})


if __name__ == "__main__":
    main()
