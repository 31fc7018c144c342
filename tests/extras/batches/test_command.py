"""`launch.py batch`: starts a server on the files, reports its progress, and exits with their outcome."""

import argparse
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from extras.batches import command as batch
from extras.batches.command import DONE, LEFT, UNUSABLE, Progress, ResultCount, run_batch
from supervisor import programs

REPOSITORY = Path(__file__).parents[3]

SERVER = """
import sys
from pathlib import Path
print("a line of the server", file=sys.stderr)
flags = sys.argv[1:]
assert flags[:5] == ["--port", "0", "--no-standby", "--model", "m"] and flags[5] == "--batch-run", flags
asked, output = map(Path, flags[6:])
done = output.read_text().splitlines() if output.exists() else []
lines = [line for line in asked.read_text().splitlines() if line and line not in done]
with output.open("a") as file:
    file.writelines(line + "\\n" for line in lines[:{num}])
sys.exit({code})
"""


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Options with a file of three lines and a blank one, for a server that a script plays."""
    (tmp_path / "in").write_text("1\n2\n\n3\n")
    monkeypatch.setattr(programs, "ROOT", tmp_path)
    return argparse.Namespace(input=tmp_path / "in", output=tmp_path / "out", server_flags=["--model", "m"])


def play(tmp_path: Path, num: int, code: int = 0) -> None:
    (tmp_path / "launch.py").write_text(SERVER.replace("{num}", f"{num}").replace("{code}", f"{code}"))


def test_what_is_left_is_notified_and_the_next_run_continues(
    options: argparse.Namespace, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    play(tmp_path, num=1)
    assert run_batch(options) == LEFT
    stated = capfd.readouterr().err
    assert "a line of the server" in stated
    assert "2 of 3 lines have no result" in stated
    play(tmp_path, num=3)
    assert run_batch(options) == DONE
    assert options.output.read_text() == "1\n2\n3\n"
    (tmp_path / "launch.py").unlink()
    assert run_batch(options) == DONE  # without a server


def test_how_far_it_is_is_notified_without_a_terminal(
    options: argparse.Namespace, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    play(tmp_path, num=2)
    run_batch(options)
    assert "2 of 3 lines have a result, about 0:00:0" in capfd.readouterr().err


def test_it_is_notified_now_and_then(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    now_s = 100.0
    monkeypatch.setattr(batch.time, "monotonic", lambda: now_s)
    progress = Progress(10, 2)
    for after_s, num_done in ((5, 3), (10, 4), (15, 5), (20, 5), (35, 5), (45, 9)):
        now_s = 100.0 + after_s
        progress.show(num_done)
    progress.show(9, is_end=True)
    assert capfd.readouterr().err.splitlines() == [
        "4 of 10 lines have a result, about 0:00:30 left",
        "5 of 10 lines have a result, about 0:00:33 left",
        "9 of 10 lines have a result, about 0:00:06 left",
    ]


def test_a_terminal_has_a_bar(options: argparse.Namespace, tmp_path: Path):
    play(tmp_path, num=3)
    terminal, other_end = os.openpty()
    command = "import argparse, sys; from pathlib import Path; from extras.batches import command as batch; "
    command += "from supervisor import programs; "
    command += "programs.ROOT, given = Path(sys.argv[1]), [Path(sys.argv[1]) / name for name in ('in', 'out')]; "
    command += "flags = ['--model', 'm']; batch.run_batch(argparse.Namespace(input=given[0], output=given[1], "
    command += "server_flags=flags))"
    process = subprocess.Popen([sys.executable, "-c", command, str(tmp_path)], stderr=other_end, cwd=REPOSITORY)
    os.close(other_end)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(terminal, 4096):
            shown += piece
    os.close(terminal)
    assert process.wait(60) == DONE
    assert b"0/3" in shown
    assert b"3/3" in shown


def test_a_server_that_failed_with_all_lines_answered(options: argparse.Namespace, tmp_path: Path):
    play(tmp_path, num=3, code=7)
    assert run_batch(options) == LEFT


def test_a_file_that_cannot_be_read(options: argparse.Namespace, capfd: pytest.CaptureFixture[str]):
    options.input.unlink()
    assert run_batch(options) == UNUSABLE
    assert "No such file" in capfd.readouterr().err


def test_results_are_counted_as_they_come_and_after_a_cut(tmp_path: Path):
    path = tmp_path / "out"
    count = ResultCount(path)
    assert count.look() == 0
    for text, num in (("1\n2", 1), ("1\n2\n3\n", 3), ("1\n", 1), ("1\n22\n", 2)):
        path.write_text(text)
        assert count.look() == num
