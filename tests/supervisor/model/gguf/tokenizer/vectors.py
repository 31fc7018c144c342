"""llama.cpp's test vectors: texts, and the tokens that the models' own tokenizers make of them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("golden") / "vocabularies.json"
"""The parts of vocabularies that the vectors use; made by make_vocabularies.py."""

REDUCED = [
    "bert-bge",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "qwen2",
    "qwen35",
]
"""One for each way to split a text. `GOLDEN` also has smollm2, which splits as StarCoder, Refact and Command R do."""

NAMES = [*REDUCED, "command-r", "mpt", "phi-3", "refact", "starcoder"]
SEPARATOR = "\n__ggml_vocab_test__\n"


def read_vectors(vocabulary: Path) -> list[tuple[str, list[int]]]:
    """Returns the texts and tokens in the files next to `vocabulary`."""
    texts = Path(f"{vocabulary}.inp").read_bytes().decode().split(SEPARATOR)
    lines = Path(f"{vocabulary}.out").read_text(encoding="ascii").split("\n")[: len(texts)]
    return list(zip(texts, ([int(number) for number in line.split()] for line in lines), strict=True))


@cache
def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def reduced_metadata(name: str) -> dict[str, Any]:
    """Returns a copy of the metadata that a test may change."""
    return json.loads(json.dumps(golden()["vocabularies"][name]["metadata"]))
