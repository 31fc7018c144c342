"""The step benchmark runs on the CPU, and counts what a step must read and multiply."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import bench_step
from benchmarks.kernels import measure
from benchmarks.model_shapes import make_shape, plan_decode, step_bytes, step_flop

QUICK = ["--shape", "gpt2-124m", "--device", "cpu", "--quick", "--cpu-threads", "1", "--context", "32"]


def test_it_runs_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "READ_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(measure, "PRODUCT_SIZE", {"cpu": 32})
    file = tmp_path / "step.json"
    assert bench_step.main([*QUICK, "--json", str(file)]) == 0
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert results["degraded"] == ""
    (row,) = results["rows"]
    assert row["ms"] > 0
    assert row["host_ms"] > 0
    assert row["floor_ms"] == max(row["floor_read_ms"], row["floor_compute_ms"])
    assert row["times_floor"] == pytest.approx(row["ms"] / row["floor_ms"])
    assert not {"gpu_ms", "kernel_ms", "kernels"} & set(row)


def test_a_step_reads_weights_once_and_keys_and_values_of_each_row() -> None:
    shape = make_shape("qwen3-0.6b")
    one, two = (step_bytes(shape, num_rows, 513) for num_rows in (1, 2))
    assert two - one == 114_688 * 513
    assert one - 114_688 * 513 == 2 * 596_049_920


def test_a_step_multiplies_each_weight_for_each_row() -> None:
    shape = make_shape("qwen3-0.6b")
    attention = 4 * 28 * 16 * 128 * 513
    assert step_flop(shape, 2, 513) == 2 * (2 * 596_049_920 + attention)


def test_rows_of_a_planned_step_have_slots_of_their_own() -> None:
    batch = plan_decode(3, 40)
    assert list(torch.frombuffer(bytearray(batch.slots), dtype=torch.int64)) == [40, 88, 136]
