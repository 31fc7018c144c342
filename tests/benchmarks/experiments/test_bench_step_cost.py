"""The benchmark of a step's cost without the model runs, and its result can be stored."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.experiments.step_cost_0026 import bench_step_cost
from scheduler_proc.computing import runner


def test_it_tells_the_parts_of_steps_in_which_all_rows_decode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, num_threads, untimed = tmp_path / "result.json", torch.get_num_threads(), runner.compute_result
    bench_step_cost.main(["--rows", "2", "--rounds", "1", "--json", str(file)])
    torch.set_num_threads(num_threads)
    assert runner.compute_result is untimed
    lines = json.loads(file.read_bytes())["results"]
    assert [(line["rows"], line["tokens"]) for line in lines] == [(2, "greedy"), (2, "drawn")]
    for line in lines:
        times = line["median_us"]
        assert line["steps"] == bench_step_cost.OUTPUT_TOKENS - 1
        assert all(times[part] > 0 for part in ("schedule", "prepare", "compute_result", "commit", "step", "outside"))
    assert "2 rows, drawn: " in capsys.readouterr().out
