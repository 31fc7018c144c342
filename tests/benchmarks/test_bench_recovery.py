"""The measurement on a real server: a kill, and what clients feel of it."""

import json
from array import array
from pathlib import Path

import pytest

from benchmarks import bench_recovery
from benchmarks.load.answer import StreamResult
from benchmarks.load.connection import Target
from benchmarks.load.drive import Limits, Load
from benchmarks.load.workloads import SamplingFields
from supervisor.model.lookup import BUNDLED_MODEL


def test_a_silence_is_of_all_streams_together() -> None:
    load = Load(Target("127.0.0.1", 1), SamplingFields(), Limits(1, 1.0))
    load.measurement.results += [
        StreamResult(arrivals_ns=array("q", [5, 40, 90])),
        StreamResult(arrivals_ns=array("q", [20, 45])),
    ]
    assert bench_recovery.longest_silence_ns(load, since_ns=10) == 45, "from 45 to 90"
    assert bench_recovery.longest_silence_ns(load, since_ns=44) == 45


def test_a_pause_is_of_one_stream() -> None:
    load = Load(Target("127.0.0.1", 1), SamplingFields(), Limits(1, 1.0))
    load.measurement.results += [
        StreamResult(arrivals_ns=array("q", [5, 40, 90])),
        StreamResult(arrivals_ns=array("q", [20, 95])),
        StreamResult(arrivals_ns=array("q", [1])),
    ]
    assert bench_recovery.longest_pause_ns(load, since_ns=50) == 75, "from 20 to 95"
    assert bench_recovery.longest_pause_ns(load, since_ns=95) == 0


@pytest.mark.ring
@pytest.mark.timeout(300)
def test_a_killed_process_is_seen_to_come_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench_recovery, "PROCESSES", ("detokenizer", "frontend"))
    for name, value in (("SETTLE_S", 0.2), ("AFTERMATH_S", 0.2), ("NUM_STREAMS", 2)):
        monkeypatch.setattr(bench_recovery, name, value)
    file = tmp_path / "recovery.json"
    flags = ["--model", str(BUNDLED_MODEL), "--cpu-threads", "1", "--drain-timeout-s", "200"]
    assert bench_recovery.main(["--kills", "1", "--json", str(file), "--", *flags]) == 0
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    first, second = results["kills"]
    assert (first["process"], second["process"]) == ("detokenizer", "frontend")
    assert first["streams_s"] > 0
    assert second["streams_s"] is None
    assert any("died" in line for _, line in first["phases"])
    assert [(one["process"], one["num_failed"]) for one in results["replacements"]] == [
        ("detokenizer", 0),
        ("frontend", 0),
    ]
    assert min(one["streams_s"] for one in results["replacements"]) > 0
    assert second["accepts_s"] > 0
    assert min(first["ready_s"], first["new_request_s"], second["ready_s"], second["new_request_s"]) > 0
