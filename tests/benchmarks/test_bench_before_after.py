"""Two sides in turns: their order, their figures, and what their processes use."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_before_after
from benchmarks.bench_before_after import ROOT, SIDES, Run, Turn, Use, main, measure, summarize, usage

TOKENIZER = ROOT / "assets" / "shakespeare-gpt2"


def make_turn(seconds: float, faults: int = 0, idle_mib: float = 100.0) -> Turn:
    return Turn(idle_mib, 0.0, 2 * idle_mib, {"W3": Run(seconds, Use(seconds, 0.5 * seconds, faults, 1.0))})


def test_sides_alternate_and_both_get_the_same_prompts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[Path, list[str], dict[str, Any]]] = []

    def record(root: Path, flags: Sequence[str], age_s: float, requests: dict[str, Any]) -> Turn:
        calls.append((root, list(flags), requests))
        return make_turn(1.0 if root == ROOT else 2.0)

    monkeypatch.setattr(bench_before_after, "measure", record)
    file = tmp_path / "result.json"
    flags = ["--before", str(tmp_path), "--tokenizer", str(TOKENIZER), "--pairs", "2", "--workloads", "W3"]
    assert main([*flags, "--before-flags=--no-standby", "--json", str(file)]) == 0
    measured = [("after" if root == ROOT else "before", requests) for root, _, requests in calls if requests]
    assert [side for side, _ in measured] == ["after", "before", "before", "after"]
    assert measured[0][1] == measured[1][1] != measured[2][1] == measured[3][1]
    assert all(("--no-standby" in flags) == (root != ROOT) for root, flags, requests in calls if requests)
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert results["summary"]["W3"]["ratio"] == {"seconds": 0.5, "cpu": 0.5}
    assert list(results["default_idle"]) == list(SIDES)


def test_the_summary_has_medians_and_ratios_of_pairs() -> None:
    before = [make_turn(2.0, 10, 50.0), make_turn(4.0, 30, 60.0), make_turn(8.0, 20, 70.0)]
    after = [make_turn(3.0, 1, 10.0), make_turn(4.0, 3, 30.0), make_turn(4.0, 2, 20.0)]
    summary = summarize({"before": before, "after": after})
    figures = {"seconds": 4.0, "user_s": 4.0, "system_s": 2.0, "minor_faults": 2, "others_s": 1.0}
    assert summary["W3"]["after"] == figures
    assert summary["W3"]["before"]["minor_faults"] == 20
    assert summary["W3"]["ratio"] == {"seconds": 1.0, "cpu": 1.0}
    assert summary["idle"]["after"] == {"mib": 20.0, "percent_of_a_core": 0.0, "mib_after_load": 40.0}


def test_an_idle_server_is_measured(launch_fake: Callable[[str], None]) -> None:
    launch_fake("well")
    turn = measure(ROOT, ["--model", "tiny"], 0.2, {})
    assert turn.idle_mib > 1
    assert turn.runs == {}


def test_a_server_that_does_not_start(launch_fake: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    launch_fake("fails")
    assert main(["--before", str(ROOT), "--tokenizer", str(TOKENIZER)]) == 1
    assert "bench_before_after: " in capsys.readouterr().err


BUSY = "held = bytearray(32 << 20)\nfor _ in range(1 << 22): pass\nprint(1, flush=True); input()"


def test_cpu_time_and_faults_are_those_of_the_process() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        used = usage(process.pid, os.getpid())
        process.communicate("\n")
    assert used.user_s > 0
    assert used.minor_faults > 100
    assert used.others_s > used.user_s, "this process has run longer"
