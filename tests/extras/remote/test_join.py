import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from extras.remote import join
from extras.remote.join import claim_new
from extras.remote.session import NoHeadError, RefusedError
from messages.errors import BootError
from runtime.run_dir import RunDir, claim


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as path:
        yield Path(path)


def test_left_overs_go_and_nothing_through_a_link(short_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    prefix = f"sluice-{os.getuid()}-join-"
    treasure, lock = claim(short_path / "treasure")
    os.close(lock)
    _, lock = claim(short_path / f"{prefix}1")
    os.close(lock)
    _, busy = claim(short_path / f"{prefix}2")
    (short_path / f"{prefix}3").symlink_to(treasure.path)
    (short_path / f"{prefix}4").touch()
    (short_path / f"{prefix}{os.getpid()}").mkdir()  # a name that could be guessed
    run_dir, own = claim_new()
    left = {path.name for path in short_path.iterdir()}
    assert left == {
        "treasure", f"{prefix}2", f"{prefix}3", f"{prefix}4", f"{prefix}{os.getpid()}", run_dir.path.name
    }  # fmt: skip
    assert treasure.lock_file.exists()
    assert run_dir.path.name.startswith(f"{prefix}{os.getpid()}-")
    os.close(busy)
    os.close(own)


def test_a_key_is_wrong_after_several_refusals_as_a_head_that_ends_looks_the_same(
    monkeypatch: pytest.MonkeyPatch, short_path: Path
):
    monkeypatch.setattr(join, "RETRY_INTERVAL_S", 0.0)
    monkeypatch.setattr(join, "MemoryFiles", Mock())
    answers = [RefusedError("x"), NoHeadError("y"), RefusedError("x"), RefusedError("x"), RefusedError("the key")]
    joiner = join.Joiner(Mock(retry_s=60.0, once=False), Mock(), RunDir(short_path), Mock(), Mock())
    serve = Mock(side_effect=answers)
    monkeypatch.setattr(joiner, "_serve_once", serve)
    with pytest.raises(BootError, match="the key"):
        joiner.run()
    assert serve.call_count == len(answers)


def test_a_joiner_reports_where_no_directory_can_be_made(monkeypatch: pytest.MonkeyPatch):
    def full(**_: str) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(BootError, match="No space left on device"):
        claim_new()
