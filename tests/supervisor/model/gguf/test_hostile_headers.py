"""Headers that are made to cost time or memory: each is refused or served at a bounded cost, with a short error."""

import resource
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from messages.errors import BootError
from supervisor.model.gguf.model_directory import Parts, find_directory
from tests.gguf_files import BYTES, INT8, Stored, Typed, write_gguf, write_model

MB = 1 << 20
T = "tokenizer.ggml."
MAX_S, MOST_BYTES = 10.0, 200 * MB

LLAMA: dict[str, Any] = {T + "model": "llama"}


def pieces(texts: list[str]) -> dict[str, Any]:
    return LLAMA | {T + "tokens": texts, T + "scores": [-float(n) for n in range(len(texts))], T + "token_type": []}


def stack(path: Path) -> Path:
    """Writes a model of which each byte of a tensor would be an expert."""
    metadata = {"general.architecture": "qwen3moe", "qwen3moe.expert_count": 8 * MB, "qwen3moe.expert_used_count": 1}
    metadata |= {f"qwen3moe.{key}": 32 for key in ("embedding_length", "context_length", "feed_forward_length")}
    metadata |= {"qwen3moe.block_count": 1, "qwen3moe.attention.head_count": 1}
    metadata["qwen3moe.attention.layer_norm_rms_epsilon"] = 1e-6  # type: ignore
    experts = Stored("I8", (8 * MB, 1, 1), bytes(8 * MB))
    return write_gguf(
        path, metadata, {"token_embd.weight": Stored("F32", (32, 32)), "blk.0.ffn_up_exps.weight": experts}
    )


Write = Callable[[Path], Path]


def with_metadata(metadata: dict[str, Any]) -> Write:
    return lambda path: write_model(path, metadata)


@pytest.mark.parametrize(
    ("write", "complaint"),
    [
        (with_metadata({"qwen2.block_count": 1 << 31}), "block_count is 2147483648: it must be at most 1000"),
        (with_metadata({"qwen2.context_length": 1 << 31}), "context_length is 2147483648: it must be at most"),
        (with_metadata({"qwen2.attention.head_count_kv": [2] * MB + [3]}), "head_count_kv is .*must be a positive"),
        (with_metadata({"qwen2.rope.dimension_count": 1 << 24}), "rope.dimension_count is 16777216: supported is 16"),
        (with_metadata({"general.architecture": "x" * 30 * MB}), "general.architecture is 'x{60}…'; supported are"),
        (with_metadata({T + "model": "x" * 30 * MB}), f"{T}model is 'x{{60}}…': this kind"),
        (with_metadata({T + "pre": "x" * 30 * MB}), f"{T}pre is 'x{{60}}…', which"),
        (with_metadata({T + "add_bos_token": "x" * 30 * MB}), "add_bos_token: is 'x{60}…', not true"),
        (with_metadata({"split.count": Typed(2, 2), "split.no": "x" * 30 * MB}), "is part 'x{60}…' of a model"),
        (with_metadata({"qwen2.rope.scaling.type": "x" * 30 * MB}), "scaling.type is 'x{60}…': supported is"),
        (with_metadata({"general.sampling.temp": "x" * 30 * MB}), "general.sampling.temp is 'x{60}…', not a number"),
        (with_metadata(pieces([*BYTES, "a" * MB])), "token 256 has 1048576 characters; the limit is 1024"),
        (with_metadata(pieces(["a" * count for count in range(1, 3001)])), "token 1024 has 1025 characters"),
        (
            with_metadata({T + "tokens": Typed(INT8, bytes(3 * MB))}),
            "an array of 3145728 entries; the limit is 2097152",
        ),
        (stack, "metadata: 8388608 experts: supported are 1024"),
    ],
)
def test_a_header_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write, complaint: str):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write(tmp_path / "m.gguf")
    with pytest.raises(BootError, match=rf"m\.gguf: (?s:.*){complaint}") as raised:
        measured(path)
    assert len(str(raised.value)) < 1000


def test_values_that_are_not_read_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Arrays of 60 MB; a text that is no UTF-8."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    other: dict[str, Any] = {f"other.{index}": Typed(INT8, bytes(4 * MB)) for index in range(15)}
    path = write_model(tmp_path / "m.gguf", other | {"general.license": b"\xff" * MB, "general.name": b"\xff"})
    assert measured(path).is_dir()


def measured(path: Path) -> Path:
    """Returns the model's directory. Fails if it costs more time of this process and its children, or more memory."""
    began_s, children_s = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    tracemalloc.start()
    try:
        return find_directory(path, Parts.MODEL | Parts.TOKENIZER)
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < MOST_BYTES
        used_s = time.process_time() - began_s + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - children_s
        assert used_s < MAX_S
