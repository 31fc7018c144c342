"""Old snapshots go, and nothing else in their directory."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from messages.config.server import Config, RunConfig
from messages.control.admin import Done, TakeSnapshot
from runtime.run_dir import RunDir
from supervisor.admin import snapshots as snapshots_module
from supervisor.admin.snapshot import Snapshot
from supervisor.admin.snapshots import Snapshots
from supervisor.console import Console
from tests.runtime.test_run_dir import CONFIG


class NoProcesses(list[Any]):
    """A group of none."""

    board = SimpleNamespace(statuses=list)
    frontends = list


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    run_dir = RunDir(tmp_path / "run")
    run_dir.path.mkdir()
    run = RunConfig(snapshot_dir=str(tmp_path / "snapshots"), max_snapshots=2)
    config: Config = msgspec.structs.replace(CONFIG, run=run)
    run_dir.write_config(config)
    return Snapshots(run_dir, cast("Any", NoProcesses()), Console())


def take(snapshots: Snapshots) -> Path:
    task = snapshots.take_on_command(TakeSnapshot())
    results: list[Any] = []

    def run():
        results.append((yield from task))

    for _ in run():
        pass
    assert isinstance(results[0], Done)
    return Path(results[0].text)


def make_old(root: Path, name: str) -> Path:
    (root / name).mkdir(parents=True)
    (root / name / "manifest.json").touch()
    return root / name


def test_the_oldest_of_this_user_go(snapshots: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = tmp_path / "snapshots"
    ours = [make_old(root, f"2001010{day}-000000-8000-hang") for day in range(1, 4)]
    others = make_old(root, "20010101-000000-8000-crash")
    recording = make_old(tmp_path, "recording")
    (root / "20010102-000000-8000-link").symlink_to(recording)
    real = snapshots_module.is_own_directory
    monkeypatch.setattr(snapshots_module, "is_own_directory", lambda path: path != others and real(path))
    new = take(snapshots)
    assert [path.exists() for path in (*ours, others, new)] == [False, False, True, True, True]
    assert (recording / "manifest.json").exists()


def full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("name", ["mkdir", "write_bytes", "glob"])
def test_a_full_disk_fails_a_snapshot_and_nothing_else(
    snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str
):
    monkeypatch.setattr(Path, name, full)
    has_continued: list[bool] = []
    snapshots.take("hang", "scheduler", "it hangs", lambda: has_continued.append(True))
    snapshots.follow()
    snapshots.close()
    assert has_continued == [True]
    assert "is not whole: [Errno 28] No space left on device" in capfd.readouterr().err


def test_a_run_directory_that_was_cleaned_away_fails_a_snapshot_and_nothing_else(
    snapshots: Snapshots, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    RunDir(tmp_path / "run").config_file.unlink()
    snapshots.take("hang", "scheduler", "it hangs")
    assert "is not whole: no server runs in" in capfd.readouterr().err


def test_an_open_snapshot_can_be_closed_when_the_disk_is_full(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Snapshot, "_await_stacks", lambda self: iter([0.0]))
    snapshots.take("hang", "scheduler", "it hangs")
    assert snapshots._open
    monkeypatch.setattr(Path, "write_bytes", full)
    snapshots.close()
