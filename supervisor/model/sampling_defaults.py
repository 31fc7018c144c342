"""How a model is sampled if a request does not say: by its generation_config.json, or by its card."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from messages.errors import BootError, quoted

KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class Card(NamedTuple):
    """Recommended sampling of the models whose names begin with `prefix` and contain one of `words`."""

    prefix: str
    words: tuple[str, ...]
    values: dict[str, float]


CARDS = (
    Card("smollm2-", ("instruct",), {"temperature": 0.2, "top_p": 0.9}),
    Card("smollm3-", ("3b",), {"temperature": 0.6, "top_p": 0.95}),
    Card("qwen2.5-", ("instruct",), {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}),
    Card("llama-3", ("instruct",), {"temperature": 0.6, "top_p": 0.9}),
    Card("meta-llama-3", ("instruct",), {"temperature": 0.6, "top_p": 0.9}),
    Card("gemma-3-", ("-it",), {"temperature": 1.0, "top_p": 0.95, "top_k": 64}),
)
"""From the models' pages or their generation_config.json on the hub, which files in GGUF often lack."""


def find_sampling_defaults(generation: dict[str, Any], file: Path, name: str) -> tuple[dict[str, float], str]:
    """Returns the defaults of the model `name` and where they are from; both are empty if it has none.

    The file counts even without `do_sample` (as in vLLM). Raises `BootError` for one that is no number.
    """
    found = {key: value for key in KEYS if (value := generation.get(key)) is not None}
    for key, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BootError(f"{file}: {key} is {quoted(value)}, not a number; --generation-config none ignores it")
    if found:
        return found, "the model's files"
    stem = name.rstrip("/").rpartition("/")[2].lower().replace("_", "-")
    for prefix, words, values in CARDS:
        if stem.startswith(prefix) and any(word in stem for word in words):
            return values, "the model's card"
    return {}, ""
