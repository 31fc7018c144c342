"""The measurement against a real server whose steps only wait."""

import json
from pathlib import Path

import pytest

from benchmarks import bench_ring_cost

pytestmark = pytest.mark.ring


def test_steps_and_costs_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench_ring_cost, "WARM_UP_S", 0.2)
    file = tmp_path / "ring_cost.json"
    flags = ["--streams", "2", "--seconds", "1", "--step-ms", "2", "--json", str(file)]
    assert bench_ring_cost.main(flags) == 0
    (cost,) = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert cost["num_streams"] == 2
    assert cost["num_requests"] > 0
    assert cost["cpu_us_per_token"]["frontend"] > 0
    assert cost["latencies"]["mean step of a stream, in the scheduler"]["p50_ms"] >= 2
    first = cost["latencies"]["time to first token"]["mean_ms"]
    assert 0 < cost["latencies"]["of it outside of the scheduler"]["mean_ms"] < first
