"""The footprint of a server whose shape is known."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from benchmarks import bench_footprint
from benchmarks.bench_footprint import NUM_STREAMS, Footprint, main


@pytest.fixture(autouse=True)
def settle_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_footprint, "SETTLE_S", 0.1)


def test_everything_is_measured(
    launch_fake: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch_fake("well")
    file = tmp_path / "footprint.json"
    assert main(["--model", "tiny", "--idle-seconds", "0.3", "--json", str(file)]) == 0
    assert "SIGTERM: exit code 0" in capsys.readouterr().out
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["results"]["flags"] == ["--model", "tiny"]
    footprint = msgspec.convert(document["results"]["footprint"], Footprint)
    lines = [line for _, line in footprint.log_until_ready]
    assert lines in (["loading tiny"], ["loading tiny", "ready"]), "the last line may come after the first answer"
    assert 0 < footprint.log_until_ready[0][0] <= footprint.seconds_to_ready
    assert len(footprint.memory_before) == len(footprint.memory_after) == 2
    assert all(process.rss_mib > 1 for process in footprint.memory_before)
    assert footprint.load.outcomes == {"ok": NUM_STREAMS}
    assert footprint.idle_before.seconds >= 0.3
    assert (footprint.exit_code, footprint.num_left_behind) == (0, 0)


def test_a_server_that_exits_badly_is_a_failure(
    launch_fake: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    launch_fake("exits-with-3")
    assert main(["--idle-seconds", "0.1"]) == 1
    assert "SIGTERM: exit code 3" in capsys.readouterr().out


def test_a_server_that_does_not_start(launch_fake: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    launch_fake("fails")
    assert main(["--model", "tiny"]) == 1
    assert "no weights in there" in capsys.readouterr().err
