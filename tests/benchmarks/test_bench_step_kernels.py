"""The benchmark of a step's C kernels accounts for all of the step, and its result makes a table."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import bench_step_kernels
from benchmarks.bench_step_kernels import OUTSIDE, PRODUCT, READ, Kind
from benchmarks.experiments.step_cost_0026.bench_step_cost import SHAPE
from benchmarks.page.cpu_engine import step_kernels_parts
from kernels.cpu.library import find_kernel


def test_a_step_is_its_kernels_and_what_is_outside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_step_kernels, "SHAPES", {"gpt2-124m": SHAPE})
    monkeypatch.setattr(bench_step_kernels, "KINDS", (Kind(2, 1, 20), Kind(1, 30, 5)))
    monkeypatch.setattr(bench_step_kernels, "read_bandwidth", lambda rounds: 1e4)
    monkeypatch.setattr(bench_step_kernels, "product_rate", lambda rounds: 1e6)
    num_threads, file = torch.get_num_threads(), tmp_path / "step_kernels.json"
    assert bench_step_kernels.main(["--rounds", "3", "--json", f"{file}#bfloat16", "--cpu-threads", "1"]) == 0
    torch.set_num_threads(num_threads)
    decode, prefill = json.loads(file.read_bytes())["runs"]["bfloat16"]["results"]["steps"]
    for step, attention in ((decode, "paged_decode"), (prefill, "paged_prefill")):
        assert 0 < step["least_ms"] < step["ms"]
        assert step["kernels_ms"][OUTSIDE] > 0
        if find_kernel("embed", torch.float32) is not None:
            assert {attention, "layer_norm", "embed"} <= set(step["kernels_ms"])
    assert "2 decode rows of 20 tokens: " in capsys.readouterr().out
    (text,) = step_kernels_parts(tmp_path)
    assert "| a prompt's 30 tokens behind 5 |" in text
    assert step_kernels_parts(tmp_path / "nowhere") == []


def test_the_least_time_is_that_of_reading_or_of_multiplying() -> None:
    """GPT-2 124M: 124 M weights a token, and 2 * (512 * 85 M + 38.6 M) operations for a prompt of 512."""
    shape = bench_step_kernels.SHAPES["gpt2-124m"]
    reads, multiplies = {READ: 40.0, PRODUCT: 1e9}, {READ: 1e9, PRODUCT: 400.0}
    for weight_format, ms in (("bfloat16", 6.19), ("int8", 3.09), ("int4", 1.74)):
        assert Kind(1, 1, 0).least_ms(shape, weight_format, reads) == pytest.approx(ms, rel=0.01)
    without_attention = 2 * (512 * 84.95e6 + 38.6e6) / 400e6
    attention = 2 * 512 * 2 * 12 * 768 * 256.5 / 400e6
    assert Kind(1, 512, 0).least_ms(shape, "bfloat16", multiplies) == pytest.approx(
        without_attention + attention, rel=0.01
    )
