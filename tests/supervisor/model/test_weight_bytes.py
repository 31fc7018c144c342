import json
import struct
from pathlib import Path
from typing import Any

import pytest

from messages.config.server import Config, ModelConfig, ModelFacts, RunConfig
from supervisor.model import weight_bytes
from supervisor.model.weight_bytes import find_weight_bytes
from tests.gguf_files import Stored, write_gguf


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One with 1 GB to take, no GPU, and no bfloat16."""
    memory_info = tmp_path / "meminfo"
    memory_info.write_text("MemAvailable: 1000000 kB\n", encoding="ascii")
    monkeypatch.setattr(weight_bytes, "MEMORY_INFO", memory_info)
    for name in ("CGROUP", "CPU_INFO"):
        monkeypatch.setattr(weight_bytes, name, tmp_path / "absent")
    monkeypatch.setattr(weight_bytes, "GPU_FILES", (str(tmp_path / "gpu"),))


def write(path: Path, shapes: dict[str, list[int]]) -> None:
    header = {name: {"dtype": "F16", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def found(model_dir: Path, run: RunConfig | None = None, **model: Any) -> int:
    facts = ModelFacts(
        model_dir=str(model_dir), tokenizer_dir="", served_names=("m",), vocab_size=9, max_model_len=9, eos_token_ids=()
    )
    return find_weight_bytes(Config(facts=facts, model=ModelConfig(**model), run=run or RunConfig()))


@pytest.mark.parametrize(("dtype", "size"), [("auto", 4), ("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_they_are_counted_in_the_number_format_of_the_model(tmp_path: Path, dtype: str, size: int) -> None:
    write(tmp_path / "model-00001-of-00002.safetensors", {"embedding": [10, 4], "a": [3, 4]})
    write(tmp_path / "model-00002-of-00002.safetensors", {"lm_head.weight": [10, 4], "b": [4]})
    write(tmp_path / "consolidated.safetensors", {"all": [96]})
    assert found(tmp_path, dtype=dtype) == size * (40 + 12 + 40 + 4)


def test_blocks_of_gguf_are_counted_as_they_are(tmp_path: Path) -> None:
    shapes = {"F32": (3, 4), "F16": (2, 4), "Q4_K": (2, 256), "Q6_K": (1, 512), "Q8_0": (2, 64), "Q2_K": (1, 256)}
    tensors = {name: Stored(name, shape) for name, shape in shapes.items()}
    write_gguf(tmp_path / "model.gguf", {}, tensors)
    assert found(tmp_path) == 4 * 12 + 4 * 8 + 2 * 144 + 2 * 210 + 4 * 34 + 84
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert not found(tmp_path)


def test_none_where_schedulers_share_none_or_it_is_not_sure(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": [3, 4]})
    assert found(tmp_path) == found(tmp_path, RunConfig(data_parallel=3)) > 0
    assert not found(tmp_path, RunConfig(tensor_parallel=2))
    assert not found(tmp_path, RunConfig(data_parallel=0))
    assert not found(tmp_path, share_weights=False)
    assert not found(tmp_path, quantization="int8")
    assert not found(tmp_path, load_format="pt")
    assert not found(tmp_path, load_format="dummy")
    assert not found(tmp_path, device="cuda")
    (tmp_path / "gpu").touch()
    assert not found(tmp_path)
    assert found(tmp_path, device="cpu")


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 40, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 8) + b'{"a": 1}']
)
def test_a_damaged_file_is_left_to_the_loader(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert found(tmp_path) == 0
    assert found(tmp_path / "absent") == 0


def test_none_where_they_take_most_of_the_memory_that_is_left(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"lm_head.weight": [124_000_000]})
    assert found(tmp_path) == 496_000_000
    write(tmp_path / "model.safetensors", {"lm_head.weight": [129_000_000]})
    assert found(tmp_path) == 0


def test_numbers_next_to_blocks_are_float32_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_bytes, "computes_bfloat16", lambda path: True)
    tensors = {"blocks": Stored("Q4_K", (9, 256)), "norm": Stored("F32", (16,))}
    write_gguf(tmp_path / "model.gguf", {}, tensors)
    assert found(tmp_path) == found(tmp_path, dtype="float32") == 9 * 144 + 4 * 16
    assert found(tmp_path, dtype="bfloat16") == 9 * 144 + 2 * 16
    write_gguf(tmp_path / "model.gguf", {}, tensors | {"output.weight": Stored("F16", (9, 256))})
    assert found(tmp_path) == 9 * 144 + 2 * 16 + 2 * 9 * 256
