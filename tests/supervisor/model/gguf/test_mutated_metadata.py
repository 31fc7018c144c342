"""Models whose metadata has values of other types and sizes: each becomes a directory, or is refused by name."""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from messages.config.server import ModelConfig
from messages.errors import SluiceError
from supervisor.model.facts import read_model_facts
from supervisor.model.gguf.model_directory import Parts, find_directory
from tests.gguf_files import MODEL_METADATA, Typed, write_model

NUM_MODELS = int(os.environ.get("SLUICE_MUTATED_MODELS", "200"))
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


def test_mutated_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path, rng, num_refused = tmp_path / "m.gguf", random.Random(38), 0
    for _ in range(NUM_MODELS):
        changed: dict[str, Any] = {key: rng.choice(VALUES) for key in rng.sample(sorted(METADATA), rng.randrange(1, 4))}
        write_model(path, METADATA | changed)
        try:
            directory = find_directory(path, Parts.MODEL | Parts.TOKENIZER)
            read_model_facts(ModelConfig(), directory, directory, "m")
        except SluiceError as error:
            assert path.name in str(error) or "config.json" in str(error), error  # noqa: PT017
            num_refused += 1
    assert 0 < num_refused < NUM_MODELS
