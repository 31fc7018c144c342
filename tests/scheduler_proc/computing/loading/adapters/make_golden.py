"""Writes `golden/`: adapters that PEFT has saved, and logprobs of the models into which it has merged them.

python -m tests.scheduler_proc.computing.loading.adapters.make_golden    (needs peft; 0.21.2 made the committed files)
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import peft
import torch

from tests.checkpoints import VOCAB_SIZE, build_checkpoint

GOLDEN = Path(__file__).parent / "golden"
KINDS: dict[str, dict[str, Any]] = {
    "linears": {
        "r": 2,
        "lora_alpha": 6,
        "target_modules": r".*\.(q_proj|v_proj|down_proj)",
        "use_rslora": True,
        "rank_pattern": {"v_proj": 3},
        "alpha_pattern": {r"model.layers.1.self_attn.q_proj": 2},
        "layers_to_transform": None,
    },
    "tables": {"r": 2, "target_modules": ["o_proj", "embed_tokens"], "lora_alpha": 4},
}


def main() -> None:
    prompt = [(7 * index) % VOCAB_SIZE for index in range(1, 25)]
    logprobs: dict[str, list[float]] = {}
    for name, fields in KINDS.items():
        with tempfile.TemporaryDirectory() as scratch:
            base: Any = build_checkpoint(Path(scratch), "llama-gqa-tied")
        base.config.tie_word_embeddings = False  # as rows of a server compute: the head keeps its own weight
        base.lm_head.weight = torch.nn.Parameter(base.lm_head.weight.detach().clone())
        model = peft.get_peft_model(base, peft.LoraConfig(**fields))
        generator = torch.Generator().manual_seed(3)
        for parameter_name, parameter in model.named_parameters():
            if "lora_" in parameter_name:
                parameter.data.normal_(0, 0.2, generator=generator)
        model.save_pretrained(GOLDEN / name, save_embedding_layers=False)
        (GOLDEN / name / "README.md").unlink(missing_ok=True)
        merged: Any = model.merge_and_unload()
        with torch.inference_mode():
            logits = merged(torch.tensor([prompt])).logits[0].log_softmax(-1)
        logprobs[name] = [round(float(logits[index, token]), 6) for index, token in enumerate(prompt[1:])]
    text = json.dumps({"peft": peft.__version__, "prompt": prompt, "logprobs": logprobs})
    (GOLDEN / "expected.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
