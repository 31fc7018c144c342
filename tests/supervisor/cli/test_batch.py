"""`launch.py batch`: starts a server on the files, tells how far it is, and ends as the files say."""

import argparse
from pathlib import Path

import pytest

from supervisor.cli import batch
from supervisor.cli.batch import DONE, LEFT, UNUSABLE, ResultCount, run_batch

SERVER = """
import sys
from pathlib import Path
print("a line of the server", file=sys.stderr)
flags = sys.argv[1:]
assert flags[:4] == ["--port", "0", "--model", "m"] and flags[4] == "--batch-run", flags
asked, output = map(Path, flags[5:])
done = output.read_text().splitlines() if output.exists() else []
lines = [line for line in asked.read_text().splitlines() if line and line not in done]
with output.open("a") as file:
    file.writelines(line + "\\n" for line in lines[:{num}])
sys.exit({code})
"""


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Of a file with three lines and a blank one, for a server that is played by a script."""
    (tmp_path / "in").write_text("1\n2\n\n3\n")
    monkeypatch.setattr(batch, "ROOT", tmp_path)
    return argparse.Namespace(input=tmp_path / "in", output=tmp_path / "out", server_flags=["--model", "m"])


def play(tmp_path: Path, num: int, code: int = 0) -> None:
    (tmp_path / "launch.py").write_text(SERVER.replace("{num}", f"{num}").replace("{code}", f"{code}"))


def test_what_is_left_is_told_and_the_next_run_goes_on(
    options: argparse.Namespace, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    play(tmp_path, num=1)
    assert run_batch(options) == LEFT
    said = capfd.readouterr().err
    assert "a line of the server" in said
    assert "2 of 3 lines have no result" in said
    play(tmp_path, num=3)
    assert run_batch(options) == DONE
    assert options.output.read_text() == "1\n2\n3\n"
    (tmp_path / "launch.py").unlink()
    assert run_batch(options) == DONE  # without a server


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
