import json
from pathlib import Path

import pytest

from benchmarks import bench_prefill
from benchmarks.kernels import measure
from benchmarks.model_shapes import make_shape, prefill_flop, step_flop


def test_it_runs_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "PRODUCT_SIZE", {"cpu": 32})
    file = tmp_path / "prefill.json"
    flags = ["--shape", "llama-135m", "--quick", "--device", "cpu", "--cpu-threads", "1", "--json", str(file)]
    assert bench_prefill.main(flags) == 0
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    (row,) = results["rows"]
    assert (row["tokens"], results["degraded"]) == (16, "")
    assert row["tok/s"] == pytest.approx(16 / row["ms"] * 1e3)
    assert row["MFU"] > 0


def test_one_token_costs_what_a_decode_row_of_one_key_does() -> None:
    shape = make_shape("qwen3-0.6b", 2)
    assert prefill_flop(shape, 1) == step_flop(shape, 1, 1)
    assert prefill_flop(shape, 100) < 100 * step_flop(shape, 1, 100)
