"""Generation settings of a model in GGUF: end tokens, sampling defaults and chat templates."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from messages.errors import BootError, quoted
from runtime.chat_files import MORE_TEMPLATES, TEMPLATE_FILE

TEMPLATE_KEY = "tokenizer.chat_template"
TEMPLATE_KEYS = re.compile(rf"{re.escape(TEMPLATE_KEY)}\.\w{{1,64}}", re.ASCII)
MAX_TEMPLATES = 64

SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
"""By the field of generation_config.json."""

END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
END_TEXTS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
    *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<eos>"),
    *("<end_of_utterance>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
)
"""Tokens that end a turn whatever the keys name, as in llama.cpp: many files name one end token of several."""

CALL_ENDS = (frozenset({"<|return|>", "<|call|>"}), frozenset({"<|calls|>", "<|flush|>"}))
"""Formats (harmony, Solar) in which <|end|> ends a message and not the turn."""


def read_generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns generation_config.json: all end tokens, and the sampling defaults that the file has.

    Raises `BootError` for a value of the wrong type.
    """
    defaults = {field: _value(metadata, key, int, float) for field, key in SAMPLING_KEYS.items() if key in metadata}
    return {"eos_token_id": _end_token_ids(metadata), **defaults}


def _end_token_ids(metadata: Mapping[str, Any]) -> list[int]:
    tokens: Any = metadata.get("tokenizer.ggml.tokens")
    texts: list[Any] = tokens if isinstance(tokens, list) else []  # pyright: ignore[reportUnknownVariableType]
    by_text = {text: token_id for token_id, text in enumerate(texts) if text in END_TEXTS}
    if any(ends <= by_text.keys() for ends in CALL_ENDS):
        by_text.pop("<|end|>", None)
    named = [_value(metadata, key, int) for key in END_KEYS if key in metadata]
    return list(dict.fromkeys([*named, *by_text.values()]))


def _value(metadata: Mapping[str, Any], key: str, *types: type) -> Any:
    value = metadata[key]
    if type(value) not in types:
        raise BootError(f"metadata {key} is {quoted(value)}, not a number")
    return value


def write_chat_templates(metadata: Mapping[str, Any], directory: Path) -> None:
    """Writes the model's chat templates, if it has any, as files that `read_chat_files` finds.

    An empty template is none, as in llama.cpp.
    """
    keys = [key for key in metadata if key == TEMPLATE_KEY or TEMPLATE_KEYS.fullmatch(key)]
    if len(keys) > MAX_TEMPLATES:
        raise BootError(f"the metadata has {len(keys)} chat templates; the limit is {MAX_TEMPLATES}")
    for key in keys:
        template: object = metadata[key]
        if isinstance(template, str) and template.strip():
            name = key.removeprefix(TEMPLATE_KEY).removeprefix(".")
            file = directory / (f"{MORE_TEMPLATES}/{name}.jinja" if name else TEMPLATE_FILE)
            file.parent.mkdir(exist_ok=True)
            file.write_text(template, encoding="utf-8")
