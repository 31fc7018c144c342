"""`launch.py keys`, as people call it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from extras.keys.command import main
from extras.keys.key_file import KeyEntry, hash_of, read_key_file
from supervisor.python_process import ROOT

Capture = pytest.CaptureFixture[str]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["keys", *map(str, arguments)])
    return main()


def test_a_key_is_shown_once_and_only_its_hash_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
):
    file = tmp_path / "keys.toml"
    flags = ("--requests-per-minute", 60, "--tokens-per-minute", 9000, "--max-running", 4, "--share", 2)
    assert run(monkeypatch, "add", file, "team-a", *flags, "--priority", -5, "--models", "m", 'od"d') == 0
    key = capsys.readouterr().out.strip()
    assert key not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_key_file(file) == {
        "team-a": KeyEntry(
            hash=hash_of(key),
            models=("m", 'od"d'),
            requests_per_minute=60,
            tokens_per_minute=9000,
            max_running=4,
            share=2,
            priority=-5,
        )
    }
    assert run(monkeypatch, "list", file) == 0
    listed = capsys.readouterr().out
    assert "team-a" in listed
    assert key not in listed


def test_comments_stay_when_keys_come_and_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture):
    file = tmp_path / "keys.toml"
    before = f'# all\n\n# of a\n[a] # here\nhash = "{hash_of("a")}"\nmodels = [\n  "x",\n]\n'
    after = f'# of b\n[b]\nhash = "{hash_of("b")}" # at the end'
    file.write_text(before + after)
    assert run(monkeypatch, "add", file, "c") == 0
    assert file.read_text().startswith(before + after + "\n\n[c]\n")
    assert run(monkeypatch, "revoke", file, "c") == 0
    assert file.read_text() == before + after + "\n\n"
    assert run(monkeypatch, "revoke", file, "a") == 0
    assert file.read_text() == "# all\n\n# of a\n" + after + "\n\n"
    assert list(read_key_file(file)) == ["b"]
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "a"), "has a key a already"),
        (("add", "x y"), "'x y' is not a name"),
        (("add", "b", "--share", "0"), "b.share: expected `int` >= 1"),
        (("add", "b", "--models", ""), r"b.models\[0\]"),
        (("revoke", "b"), "has no key b"),
        (("revoke", "inline"), "remove it by hand"),
    ],
)
def test_mistakes_change_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture, arguments: tuple[str, ...], message: str
):
    file = tmp_path / "keys.toml"
    text = f'inline = {{hash = "{hash_of("x")}"}}\n[a]\nhash = "{hash_of("a")}"\n'
    file.write_text(text)
    command, name, *flags = arguments
    assert run(monkeypatch, command, file, name, *flags) == 2
    assert re.search(message, capsys.readouterr().err)
    assert file.read_text() == text


def test_a_bad_file_is_refused_by_each_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture):
    file = tmp_path / "keys.toml"
    file.write_text("[a]\nhash = 3\n")
    for command in (("add", file, "b"), ("list", file), ("revoke", file, "a")):
        assert run(monkeypatch, *command) == 2
        assert f"{file}, line 2: a.hash" in capsys.readouterr().err


def test_commands_at_the_same_time_lose_no_key(tmp_path: Path):
    file = tmp_path / "keys.toml"
    command = [sys.executable, "launch.py", "keys", "add", str(file)]
    adding = [subprocess.Popen([*command, f"k{index}"], cwd=ROOT, stdout=subprocess.PIPE) for index in range(4)]
    keys = [process.communicate(timeout=60)[0].decode().strip() for process in adding]
    found = read_key_file(file)
    assert {name: found[name].hash for name in sorted(found)} == {
        f"k{index}": hash_of(key) for index, key in enumerate(keys)
    }
