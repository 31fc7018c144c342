import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messages.config.server import Config, HttpConfig, ModelFacts
from messages.errors import BootError, UsageError
from runtime.run_dir import RunDir, claim, default_path, kill_processes, other_processes, try_lock
from tests.supervisor.fake_run import wait_until

SLEEP = "import time; time.sleep(60)"
CONFIG = Config(
    http=HttpConfig(port=81),
    facts=ModelFacts(model_dir="/m", tokenizer_dir="/m", served_names=("m",), vocab_size=1, max_model_len=2),
)


def test_a_claimed_directory_is_private_and_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run_dir, lock = claim(Path("a/run"))
    assert run_dir.path == tmp_path / "a" / "run"
    assert stat.S_IMODE(run_dir.path.stat().st_mode) == 0o700
    os.close(lock)


def test_a_second_claim_is_refused_until_the_first_is_provided_up(tmp_path: Path):
    run_dir, lock = claim(tmp_path / "run")
    with pytest.raises(UsageError, match="another server runs in"):
        claim(tmp_path / "run")
    assert try_lock(run_dir) is None
    os.close(lock)
    _, lock = claim(tmp_path / "run")
    os.close(lock)


def test_what_an_abandoned_run_left_is_removed_and_its_processes_killed(tmp_path: Path):
    run_dir, lock = claim(tmp_path / "run")
    left_over = subprocess.Popen([sys.executable, "-c", SLEEP, "--run-dir", str(run_dir.path)])
    stranger = subprocess.Popen([sys.executable, "-c", SLEEP])
    pid_file = run_dir.pid_file("frontend")
    begun_before = subprocess.Popen([sys.executable, "-c", f"file = open({str(pid_file)!r}, 'a'); {SLEEP}"])
    pid_file.write_text(str(begun_before.pid))
    run_dir.pid_file("scheduler").write_text(str(left_over.pid))
    run_dir.pid_file("tokenizer").write_text(str(stranger.pid))
    wait_until(lambda: sorted(other_processes(run_dir)) == sorted([left_over.pid, begun_before.pid]))
    run_dir.socket("frontend").touch()
    (run_dir.path / "traces").mkdir()
    os.close(lock)
    _, lock = claim(tmp_path / "run")
    assert left_over.wait(30) == begun_before.wait(30) == -9
    assert stranger.poll() is None, "a process that has got the pid of one of ours must not be killed"
    assert [file.name for file in run_dir.path.iterdir()] == ["run.lock"]
    stranger.kill()
    stranger.wait()
    os.close(lock)


def test_a_directory_that_is_being_removed_can_be_claimed_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The orphans of a killed launcher remove its directory while the next launcher claims it."""
    run_dir, lock = claim(tmp_path / "run")
    for name in ("frontend", "scheduler", "tokenizer"):
        run_dir.socket(name).touch()
    (run_dir.path / "traces").mkdir()
    os.close(lock)
    seen: list[set[str]] = []

    def looked_at_first(remove):
        def removed(path, **where):
            seen.append({entry.name for entry in run_dir.path.iterdir()})
            remove(path, **where)

        return removed

    monkeypatch.setattr(os, "unlink", looked_at_first(os.unlink))
    monkeypatch.setattr(os, "rmdir", looked_at_first(os.rmdir))
    run_dir.remove()
    assert len(seen) >= 5
    assert all("run.lock" in names for names in seen if names), "a launcher would take it for somebody else's"
    assert not run_dir.path.exists()
    run_dir.remove()


@pytest.mark.parametrize("look", ["open", "listdir", "fchmod"])
def test_a_directory_that_goes_while_it_is_looked_at_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
):
    path = tmp_path / "run"
    path.mkdir()
    real, looks = getattr(os, look), 0

    def gone_at_first(*args: Any, **named: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 1:
            path.rmdir()
        return real(*args, **named)

    monkeypatch.setattr(os, look, gone_at_first)
    run_dir, lock = claim(path)
    assert looks
    assert run_dir.lock_file.exists()
    os.close(lock)


def test_a_directory_with_other_files_is_refused_and_left_alone(tmp_path: Path):
    (tmp_path / "letter").touch()
    with pytest.raises(UsageError, match="contains files that are not a server's"):
        claim(tmp_path)
    assert (tmp_path / "letter").exists()
    with pytest.raises(UsageError, match="is not a directory"):
        claim(tmp_path / "letter")
    with pytest.raises(UsageError, match="cannot be created"):
        claim(tmp_path / "letter" / "run")
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(UsageError, match="is not a directory"):
        claim(tmp_path / "link")


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "run"
    path.mkdir(mode=0o777)
    own_uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own_uid + 1)
    with pytest.raises(UsageError, match="belongs to another user"):
        claim(path)
    assert list(path.iterdir()) == []


def test_a_path_too_long_for_a_socket_is_refused_before_anything_is_made(tmp_path: Path):
    path = tmp_path / ("x" * 100)
    with pytest.raises(UsageError, match="is too long for a socket"):
        claim(path)
    assert not path.exists()


def test_the_lock_of_a_removed_directory_is_not_taken(tmp_path: Path):
    run_dir, lock = claim(tmp_path / "run")
    run_dir.remove()
    with pytest.raises(FileNotFoundError):
        try_lock(run_dir)
    again, second_lock = claim(tmp_path / "run")
    assert again.lock_file.exists()
    os.close(lock)
    os.close(second_lock)
    run_dir.remove()
    run_dir.remove()


def test_the_configuration_comes_back_as_it_was(tmp_path: Path):
    run_dir = RunDir(tmp_path)
    run_dir.write_config(CONFIG)
    assert run_dir.read_config() == CONFIG


def test_a_configuration_that_cannot_be_read_is_notified(tmp_path: Path):
    run_dir = RunDir(tmp_path)
    with pytest.raises(BootError, match="no server runs in"):
        run_dir.read_config()
    run_dir.config_file.write_bytes(msgspec.json.encode({"model": {}}))
    with pytest.raises(BootError, match="written by another version"):
        run_dir.read_config()


def test_only_whole_pids_are_read(tmp_path: Path):
    run_dir = RunDir(tmp_path)
    run_dir.pid_file("scheduler").write_text("12")
    run_dir.pid_file("tokenizer").write_text("")
    assert run_dir.pids() == {"scheduler": 12}
    assert kill_processes(run_dir) == []


def test_the_default_path_is_apart_for_users_and_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_path(81) == tmp_path / f"sluice-{os.getuid()}-81"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    assert default_path(81) == Path(f"/tmp/sluice-{os.getuid()}-81")
