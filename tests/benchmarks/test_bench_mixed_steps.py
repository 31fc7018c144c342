"""Gaps are told apart by what ran meanwhile, and servers are compared in turns."""

import json
from array import array
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from benchmarks.bench_mixed_steps import Gaps, MixedResult, main, sort_gaps
from benchmarks.load.answer import StreamResult
from benchmarks.load.connection import Target

QUICK = ["--streams", "3", "--burst", "2", "--interval-s", "0.1", "--rounds", "2", "--round-seconds", "0.45"]


def result(begin_ms: int, *arrivals_ms: int) -> StreamResult:
    return StreamResult(begin_ns=1_000_000 * begin_ms, arrivals_ns=array("q", [1_000_000 * ms for ms in arrivals_ms]))


def test_a_gap_is_disturbed_if_a_prompt_waited_in_any_part_of_it() -> None:
    gaps = Gaps()
    streams = [result(0, 10, 20, 35, 47, 59, 70), result(0, 12, 90), result(0)]
    sort_gaps(streams, prompts=[result(30, 45), result(31, 46), result(70, 71)], gaps=gaps)
    assert gaps.quiet_ms == [10, 12, 11], "10-20, 47-59, 59-70: the third prompt came just after"
    assert gaps.disturbed_ms == [15, 12, 78], "20-35, 35-47, 12-90"
    assert gaps.prompt_ms == [15, 15, 1]
    sort_gaps([result(0, 1, 4)], prompts=[], gaps=gaps)
    assert gaps.quiet_ms[-1] == 3, "rounds add up"


def test_servers_with_different_budgets_are_compared(
    launch_fake: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch_fake("well")
    file = tmp_path / "mixed.json"
    assert main(["--model", "tiny", "--budgets", "64", "4096", *QUICK, "--json", str(file)]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        f"round {index} of 2: --max-num-batched-tokens {budget}" for index in (1, 2) for budget in (64, 4096)
    ]
    document = json.loads(file.read_text(encoding="utf-8"))["results"]
    results = msgspec.convert(document["servers"], list[MixedResult])
    assert [found.server for found in results] == ["--max-num-batched-tokens 64", "--max-num-batched-tokens 4096"]
    for found in results:
        assert found.long_prompt_tokens == 1000
        assert found.latencies["inter-token, quiet"].count > 100
        assert found.latencies["time to first token of the prompts"].count == 2 * 2 * 4
        assert found.server in captured.out


def test_a_server_that_runs(paced_target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", paced_target.origin, *QUICK]) == 0
    assert "inter-token, prompts arriving" in capsys.readouterr().out


def test_nothing_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:1", *QUICK]) == 1
    assert "nothing answers" in capsys.readouterr().err
