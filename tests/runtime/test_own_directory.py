"""Attacks of other users on our directory in a place where all may write."""

import os
from pathlib import Path

import pytest

from messages.errors import UsageError
from runtime.lifeline import clear_run, has_launcher
from runtime.own_directory import empty_directory, is_own_directory, own_directory
from runtime.run_dir import RunDir, claim


@pytest.fixture
def treasure(tmp_path: Path) -> Path:
    """A directory of ours that looks exactly like an abandoned run directory."""
    run_dir, lock = claim(tmp_path / "treasure")
    os.close(lock)
    (run_dir.path / "files").mkdir()
    (run_dir.path / "files" / "letter").touch()
    return run_dir.path


def test_nothing_is_removed_through_a_link(treasure: Path, tmp_path: Path):
    link = tmp_path / "run"
    link.symlink_to(treasure)
    assert clear_run(RunDir(link)) == []
    RunDir(link).remove()
    with pytest.raises(UsageError, match="it is not a directory"):
        claim(link)
    assert (treasure / "files" / "letter").exists()
    assert RunDir(treasure).lock_file.exists()


def test_a_link_inside_is_removed_and_not_what_it_leads_to(treasure: Path, tmp_path: Path):
    run_dir, lock = claim(tmp_path / "run")
    (run_dir.path / "black-box").symlink_to(treasure)
    (run_dir.path / "stacks").mkdir()
    (run_dir.path / "stacks" / "1").symlink_to(treasure / "files" / "letter")
    os.close(lock)
    clear_run(run_dir)
    assert not run_dir.path.exists()
    assert (treasure / "files" / "letter").exists()


def test_a_lock_that_is_a_link_is_not_followed(treasure: Path, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.lock").symlink_to(treasure / "run.lock")
    clear_run(RunDir(tmp_path / "run"))
    with pytest.raises(UsageError, match="cannot be used"):
        claim(tmp_path / "run")
    assert (tmp_path / "run").exists()


def test_a_directory_of_another_kind_of_lock_is_no_run_directory(tmp_path: Path):
    for name in ("lock", "letter"):
        (tmp_path / name).touch()
    clear_run(RunDir(tmp_path))
    with pytest.raises(UsageError, match="contains files that are not a server's"):
        claim(tmp_path)
    assert (tmp_path / "letter").exists()


def test_a_directory_of_another_user_is_left_alone(treasure: Path, monkeypatch: pytest.MonkeyPatch):
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert clear_run(RunDir(treasure)) == []
    assert not is_own_directory(treasure)
    with pytest.raises(OSError, match="it belongs to another user"), own_directory(treasure):
        pass
    assert (treasure / "files" / "letter").exists()


def test_a_directory_that_cannot_be_looked_into_has_no_launcher(treasure: Path, monkeypatch: pytest.MonkeyPatch):
    real = os.open

    def refused(path, *rest, **named):
        if Path(path).is_relative_to(treasure):
            raise PermissionError(13, "Permission denied")
        return real(path, *rest, **named)

    monkeypatch.setattr(os, "open", refused)
    assert not has_launcher(RunDir(treasure))
    assert clear_run(RunDir(treasure)) == []


def test_others_may_write_only_into_an_empty_directory(tmp_path: Path):
    tmp_path.chmod(0o777)
    with own_directory(tmp_path):
        (tmp_path / "run.lock").touch()
    with pytest.raises(OSError, match="other users may write in it"), own_directory(tmp_path):
        pass
    clear_run(RunDir(tmp_path))
    assert (tmp_path / "run.lock").exists()


def test_a_directory_is_emptied_except_for_one_entry(tmp_path: Path):
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "kept").touch()
    with own_directory(tmp_path) as directory:
        empty_directory(directory, kept="kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert is_own_directory(tmp_path)
    assert not is_own_directory(tmp_path / "kept")
    assert not is_own_directory(tmp_path / "absent")
