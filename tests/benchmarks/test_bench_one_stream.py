"""The benchmark of one stream: what a token takes and reads, and the page's table."""

import json
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from benchmarks.bench_one_stream import describe, format_flags, make_probe, measure_token_s
from benchmarks.kernels import measure
from benchmarks.load.batch_client import Server
from benchmarks.load.connection import Target
from benchmarks.load.workloads import PlannedRequest
from benchmarks.model_shapes import SHAPES
from benchmarks.page.cpu_engine import one_stream_parts


class Timed(Server):
    """Takes 10 s for a prompt and 1 s for each token, by a clock of its own."""

    now_s = 0.0
    prompts: ClassVar[list[str]] = []

    def answer(self, planned: PlannedRequest) -> int:
        Timed.now_s += 10.0 + planned.max_tokens
        Timed.prompts.append(str(planned.prompt))
        return planned.max_tokens


def test_a_token_is_timed_without_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.load.batch_client.time.perf_counter", lambda: Timed.now_s)
    server = Timed(Target("127.0.0.1", 1))
    assert [measure_token_s(server, seed) for seed in (0, 2)] == [1.0, 1.0]
    assert len(set(Timed.prompts)) == 4  # none is in the prefix cache


def test_the_share_and_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2 124M has 123.6 M weights without the positions, and 12 layers of 2 x 768 elements of K and V a token."""
    monkeypatch.setattr("benchmarks.bench_one_stream.auto_dtype", lambda: torch.bfloat16)
    lines = {
        name: describe(SHAPES["gpt2-124m"], name, [0.02, 0.03, 0.01], [10.0, 50.0]) for name in ("float32", "int4")
    }
    kv_elements = 104 * 12 * 2 * 768
    for name, bytes_a_weight, kv_itemsize in (("float32", 4.0, 4), ("int4", 0.5625, 2)):
        num_bytes = 123.65e6 * bytes_a_weight + kv_elements * kv_itemsize
        assert lines[name]["bytes_a_token"] == pytest.approx(num_bytes, rel=1e-3)
        assert lines[name]["share"] == pytest.approx(lines[name]["bytes_a_token"] / 0.02 / 30e9)
    machine = {"cores": 2, "cpu": "A", "python": "3.11"}
    results = {"shape": "gpt2-124m", "threads": 2, "read_gb_per_s": 30.0, "formats": lines}
    about = {"command": "c", "commit": "abc", "when": "2026-11-24T09:06:52+00:00", "machine": machine}
    runs = {name: about | {"results": results | more} for name, more in (("wide", {"isa": "avx512"}), ("narrow", {}))}
    (tmp_path / "one_stream.json").write_text(json.dumps({"runs": runs}))
    (text,) = one_stream_parts(tmp_path)
    assert text.count("| float32 | 50.0 | 25.1 | 30.0 | 84% | 92% |") == 2
    assert text.count("avx512") == 1
    assert one_stream_parts(tmp_path / "nowhere") == []


def test_flags() -> None:
    assert format_flags("bfloat16")[:2] == ["--dtype", "bfloat16"]
    assert format_flags("int8")[:2] == ["--quantization", "int8"]


def test_the_probe_reads_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure.READ_BYTES, "cpu", 4 << 20)
    assert make_probe()() > 0
