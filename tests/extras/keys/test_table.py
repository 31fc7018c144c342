"""The keys as a frontend knows them while their file changes."""

import logging
import os
from pathlib import Path

import pytest

from extras.keys.key_file import hash_of
from extras.keys.table import FRESH_NS, KeyTable
from frontend.requests.client import Client
from messages.errors import UsageError


class Clock:
    """The clocks of the table, which stand still between `step`s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.seconds = 1_000_000.0
        monkeypatch.setattr("time.monotonic", lambda: self.seconds)
        monkeypatch.setattr("time.time_ns", lambda: int(self.seconds * 1e9))

    def step(self) -> None:
        self.seconds += 1.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def write(file: Path, *names: str, more: str = "") -> None:
    file.write_text("".join(f'[{name}]\nhash = "{hash_of(name)}"\n' for name in names) + more)


def found(table: KeyTable, *names: str) -> list[bool]:
    return [table.find(name.encode()) is not None for name in names]


def test_a_key_is_found_with_what_it_may(tmp_path: Path):
    file = tmp_path / "k.toml"
    write(file, "b", "a", more='share = 3\npriority = 5\nmodels = ["m"]\n')
    table = KeyTable(file)
    assert table.find(b"a") == Client(name="a", key="a", share=3, priority=5, models=("m",), sees_all=False)
    assert table.find_by_name("a") == table.find(b"a")
    for key in (b"", b"c", b"A", hash_of("a").encode(), b"\xff" * 100):
        assert table.find(key) is None
    assert table.find_by_name("c") is None
    write(file, "a", more="admin = true\n")
    client = KeyTable(file).find(b"a")
    assert client is not None
    assert (client.is_admin, client.sees_all) == (True, True)


def test_changes_take_effect_within_a_second(clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    file = tmp_path / "k.toml"
    write(file, "a")
    table = KeyTable(file)
    write(file, "a", "b")
    assert found(table, "a", "b") == [True, False]
    clock.step()
    assert found(table, "a", "b") == [True, True]
    write(file, "b")
    clock.step()
    assert found(table, "a", "b") == [False, True]
    assert [record.message for record in caplog.records] == [
        f"--api-keys: {file} has changed: 2 keys",
        f"--api-keys: {file} has changed: 1 keys",
    ]


def test_a_bad_file_leaves_the_keys_and_is_logged_once(clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file = tmp_path / "k.toml"
    write(file, "a")
    table = KeyTable(file)
    for content in ('[a]\nhash = "x"\n', None, "[a"):
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
        for _ in range(3):
            clock.step()
            assert found(table, "a") == [True]
    texts = [record.message for record in caplog.records]
    assert len(texts) == 3
    assert f"{file}, line 2: a.hash: it must be sha256" in texts[0]
    assert all(text.endswith("; the previous 1 keys stay") for text in texts)
    write(file, "b")
    clock.step()
    assert found(table, "a", "b") == [False, True]


def test_a_change_within_the_resolution_of_the_files_time_is_seen(clock: Clock, tmp_path: Path):
    """An editor that writes in place may be seen in the middle, with the same size, inode and time as at its end."""
    file = tmp_path / "k.toml"
    stamp = int(clock.seconds * 1e9)
    write(file, "a")
    os.utime(file, ns=(stamp, stamp))
    table = KeyTable(file)
    write(file, "b")
    os.utime(file, ns=(stamp, stamp))
    clock.step()
    assert found(table, "a", "b") == [False, True]


def test_a_file_that_has_not_changed_is_not_read_again(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "k.toml"
    write(file, "a")
    stamp = int(clock.seconds * 1e9) - FRESH_NS
    os.utime(file, ns=(stamp, stamp))
    table = KeyTable(file)
    monkeypatch.setattr("extras.keys.table.read_key_file", lambda path: pytest.fail("it was read again"))
    clock.step()
    assert found(table, "a") == [True]


def test_a_bad_file_at_first_is_an_error(tmp_path: Path):
    with pytest.raises(UsageError, match="cannot be read"):
        KeyTable(tmp_path / "none.toml")
