"""The benchmark of what comes after the logits runs, and its result can be kept."""

import json
import sys

import torch

from benchmarks import bench_logits


def test_it_prints_a_table_and_writes_its_result(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_logits", "--rounds", "1", "--json", str(tmp_path / "result.json")])
    num_threads = torch.get_num_threads()
    bench_logits.main()
    torch.set_num_threads(num_threads)
    result = json.loads((tmp_path / "result.json").read_text())
    lines = {line["what"]: line for line in result["results"]}
    assert lines["greedy, no logits processing"]["median_us"] > 0
    table = capsys.readouterr().out
    assert all(name in table for name in lines)
