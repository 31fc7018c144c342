"""Models whose metadata has values of other types and sizes: each becomes a directory, or is refused by name."""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from messages.config.server import ModelConfig
from messages.errors import SluiceError
from scheduler_proc.computing.loading.gguf_check import check_gguf
from supervisor.model.facts import read_model_facts
from supervisor.model.gguf import model_directory
from supervisor.model.gguf.model_directory import Parts, find_directory
from tests.gguf_files import MODEL_METADATA, Typed, mutated, write_model

NUM_MODELS = int(os.environ.get("SLUICE_MUTATED_MODELS", "200"))
MAX_ERROR_CHARS = 1000
METADATA: dict[str, Any] = MODEL_METADATA | {
    "general.name": "mutated",
    "general.sampling.temp": 0.5,
    "qwen2.rope.freq_base": 1e6,
    "qwen2.rope.scaling.factor": 1.0,
    "split.count": Typed(2, 1),
    "tokenizer.chat_template": "{{ messages }}",
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.bos_token_id": 3,
    "tokenizer.ggml.eot_token_id": 4,
    "tokenizer.ggml.scores": [0.5] * 259,
    "tokenizer.ggml.unknown_token_id": 5,
}
VALUES: list[Any] = [
    *(0, 1, 2, 255, 257, 258, 259, 10**6, 1 << 31, Typed(5, -1), Typed(10, 1 << 63), True, False),
    *(0.0, -1.0, 1e30, float("nan"), float("inf"), "", "llama", "gpt2", "bert", "t5", "none", "x"),
    *([], ["a"], ["a", "a"], ["a b", "c"], [1, 2], [0.5], [True], ["x"] * 259, [f"t{n}" for n in range(300)]),
    *(Typed(5, [-1] * 259), Typed(5, [3] * 259)),
]


@pytest.fixture(autouse=True)
def _in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The check of tensors needs no process of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(model_directory, "_check_tensors", check_gguf)


def is_refused(path: Path) -> bool:
    """True if the model in the file is refused with an error that names a file, and is not long."""
    try:
        directory = find_directory(path, Parts.MODEL | Parts.TOKENIZER)
        read_model_facts(ModelConfig(), directory, directory, "m")
    except SluiceError as error:
        assert path.name in str(error) or "config.json" in str(error), error  # noqa: PT017
        assert len(str(error)) < MAX_ERROR_CHARS, error  # noqa: PT017
        assert "cannot be read (" not in str(error), error  # noqa: PT017  (an exception that no one has thought of)
        return True
    return False


def test_mutated_metadata(tmp_path: Path):
    path, rng, num_refused = tmp_path / "m.gguf", random.Random(38), 0
    for _ in range(NUM_MODELS):
        changed: dict[str, Any] = {key: rng.choice(VALUES) for key in rng.sample(sorted(METADATA), rng.randrange(1, 4))}
        num_refused += is_refused(write_model(path, METADATA | changed))
    assert 0 < num_refused < NUM_MODELS


def test_mutated_headers(tmp_path: Path):
    """As in tests/runtime/gguf, with all that the launcher does: tokenizer, templates, and the check of tensors."""
    path, rng, num_refused = write_model(tmp_path / "m.gguf", METADATA), random.Random(51), 0
    content = path.read_bytes()
    for _ in range(NUM_MODELS):
        path.write_bytes(mutated(rng, content, content.index(b"blk.0.attn_v.bias") + 64))
        num_refused += is_refused(path)
    assert 0 < num_refused < NUM_MODELS
