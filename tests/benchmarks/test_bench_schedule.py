"""The benchmark of the scheduler runs, and its result can be kept."""

import json
import sys

from benchmarks import bench_schedule


def test_it_prints_a_table_and_writes_its_result(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_schedule", "--steps", "20", "--json", str(tmp_path / "result.json")])
    bench_schedule.main()
    result = json.loads((tmp_path / "result.json").read_text())
    assert {"command", "machine", "commit", "when", "results"} <= set(result)
    assert result["machine"]["cores"] >= 1
    lines = {line["what"]: line for line in result["results"]}
    assert lines["decode: plan, 256 rows, context 512"]["median_us"] > 0
    table = capsys.readouterr().out
    assert all(name in table for name in lines)
