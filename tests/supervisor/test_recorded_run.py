"""What a run leaves of its frames: the recording stays, the black box goes with the run directory."""

import signal
from pathlib import Path

from messages.frame_files import find_readers
from supervisor.manifest import read_manifest
from tests.supervisor.fake_run import GOOD, FakeRun

NAMES = ("frontend", "tokenizer", "scheduler", "detokenizer")


def test_a_recording_outlives_the_run_and_the_black_box_does_not(tmp_path: Path):
    folder = tmp_path / "recording"
    with FakeRun(dict.fromkeys(NAMES, GOOD), record=str(folder)) as run:
        run.wait_for("stop     Ctrl-C")
        assert {reader.process for reader in find_readers(run.run_dir.black_box)} == set(NAMES)
        assert read_manifest(run.run_dir.black_box) == read_manifest(folder)
        run.launcher.send_signal(signal.SIGTERM)
        assert run.wait_exit() == 0, run.output
        run.assert_nothing_left()
    assert {reader.process for reader in find_readers(folder)} == set(NAMES)
    assert all(file.stat().st_size < 4096 for file in folder.glob("*.frames"))


def test_a_used_directory_is_no_place_for_a_recording(tmp_path: Path):
    (tmp_path / "notes.txt").touch()
    with FakeRun(dict.fromkeys(NAMES, GOOD), record=str(tmp_path)) as run:
        assert run.wait_exit() == 2
        assert "is not empty; choose a new directory" in run.output
        run.assert_nothing_left()
