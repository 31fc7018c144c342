"""Limits and usage in the database that all frontends share."""

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from extras.keys.key_file import KeyEntry, hash_of
from extras.keys.ledger import KeyUsage, Ledger
from messages.errors import BootError
from supervisor.python_process import ROOT

HASH = hash_of("x")
USED = KeyUsage(1, 10, 4, 20, 1.5)

ENTERING = """
import sys
from pathlib import Path
from extras.keys import ledger as ledger_module
from extras.keys.key_file import KeyEntry
from extras.keys.ledger import KeyUsage, Ledger
ledger_module.LOCK_TIMEOUT_S = 60.0  # on a busy machine the other process may be stopped in a transaction
ledger = Ledger(Path(sys.argv[1]))
entry = KeyEntry(hash="sha256:" + "0" * 64, requests_per_minute=10**9, max_running=3)
print("ready", flush=True)
sys.stdin.readline()
num, most = 0, 0
for _ in range(300):
    account, is_allowed = ledger.enter("k", entry, 5)
    if is_allowed:
        num, most = num + 1, max(most, account.num_running)
        ledger.leave("k", entry, KeyUsage(1, 3, 0, 2, 0.5), 5)
print(num, most, flush=True)
if sys.argv[2:]:
    ledger.enter("k", entry, 5)
    print("entered", flush=True)
    sys.stdin.readline()
"""


Open = Callable[..., Ledger]


@pytest.fixture
def open_ledger(tmp_path: Path) -> Iterator[Open]:
    """Opens a ledger of the test's directory, and closes it at the end."""
    with contextlib.ExitStack() as stack:

        def open_one(name: str = "u", *, is_writer: bool = True) -> Ledger:
            ledger = Ledger(tmp_path / name, is_writer=is_writer)
            stack.callback(ledger.close)
            return ledger

        yield open_one


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test changes."""
    now = [1_000_000.0]
    monkeypatch.setattr("extras.keys.ledger.time.time", lambda: now[0])
    return now


def entry(**limits: int) -> KeyEntry:
    return msgspec.convert({"hash": HASH, **limits}, KeyEntry)


def test_requests_a_minute_refill_evenly(open_ledger: Open, now_s: list[float]):
    ledger, limited = open_ledger(), entry(requests_per_minute=4)
    for remaining in (3, 2, 1, 0):
        account, is_allowed = ledger.enter("k", limited, 1)
        assert is_allowed
        assert account.requests is not None
        assert (account.requests.remaining, account.requests.reset_s) == (remaining, 15.0 * (4 - remaining))
    account, is_allowed = ledger.enter("k", limited, 1)
    assert not is_allowed
    assert account.requests is not None
    assert account.requests.wait_s(1) == 15.0
    now_s[0] += 14.0
    assert not ledger.enter("k", limited, 1)[1]
    now_s[0] += 1.0
    assert ledger.enter("k", limited, 1)[1]
    assert not ledger.enter("k", limited, 1)[1]
    now_s[0] += 600.0
    assert [ledger.enter("k", limited, 1)[1] for _ in range(5)] == [True] * 4 + [False]
    assert ledger.enter("other", limited, 1)[1]


def test_output_tokens_are_charged_at_the_end_and_what_is_owed_is_waited_for(open_ledger: Open, now_s: list[float]):
    ledger, limited = open_ledger(), entry(tokens_per_minute=60)
    assert ledger.enter("k", limited, 10)[1]
    ledger.leave("k", limited, KeyUsage(1, 8, 0, 112, 1.0), 10)  # 120 tokens: twice the limit
    account, is_allowed = ledger.enter("k", limited, 10)
    assert not is_allowed
    assert account.tokens is not None
    assert (account.tokens.remaining, account.tokens.reset_s, account.tokens.wait_s(10)) == (0, 120.0, 70.0)
    now_s[0] += 70.0
    assert ledger.enter("k", limited, 10)[1]
    assert not ledger.enter("k", limited, 1)[1]


def test_a_prompt_longer_than_the_limit_enters_alone(open_ledger: Open, now_s: list[float]):
    ledger, limited = open_ledger(), entry(tokens_per_minute=60)
    assert ledger.enter("k", limited, 1000)[1]
    assert not ledger.enter("k", limited, 1000)[1]
    ledger.leave("k", limited, KeyUsage(1, 30, 0, 0, 1.0), 1000)  # the estimate was too high
    assert ledger.enter("k", limited, 30)[1]


def test_a_request_that_was_not_served_costs_nothing(open_ledger: Open, now_s: list[float]):
    ledger, limited = open_ledger(), entry(requests_per_minute=1, tokens_per_minute=60, max_running=1)
    for _ in range(3):
        assert ledger.enter("k", limited, 60)[1]
        ledger.leave("k", limited, KeyUsage(), 60)
    assert ledger.read_all()["k"] == (KeyUsage(), 0)


def test_running_requests_and_usage(open_ledger: Open):
    ledger, limited = open_ledger(), entry(max_running=2)
    assert [ledger.enter("k", limited, 1)[1] for _ in range(3)] == [True, True, False]
    assert ledger.read_all()["k"] == (KeyUsage(limited=1), 2)
    ledger.leave("k", limited, USED, 1)
    ledger.leave("k", None, USED, 1)  # the key has been revoked meanwhile
    assert ledger.read_all()["k"] == (KeyUsage(2, 20, 8, 40, 3.0, limited=1), 0)
    ledger.close()
    assert open_ledger().read_all()["k"] == (KeyUsage(2, 20, 8, 40, 3.0, limited=1), 0)


def test_a_clock_that_is_set_back_limits_for_no_longer_than_a_minute(open_ledger: Open, now_s: list[float]):
    ledger, limited = open_ledger(), entry(requests_per_minute=1)
    assert ledger.enter("k", limited, 1)[1]
    now_s[0] -= 10_000.0
    assert not ledger.enter("k", limited, 1)[1]
    now_s[0] += 60.0
    assert ledger.enter("k", limited, 1)[1]


def start(path: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", ENTERING, str(path), *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert read_line(process) == "ready\n"
    return process


def begin(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_processes_share_the_limits_exactly_and_the_dead_leave_no_running_request(tmp_path: Path, open_ledger: Open):
    path = tmp_path / "u"
    with start(path) as first, start(path, "stays") as second:
        for process in (first, second):
            begin(process)
        counts = [read_line(process).split() for process in (first, second)]
        assert max(int(most) for _, most in counts) <= 3
        num = sum(int(num) for num, _ in counts)
        assert read_line(second) == "entered\n"
        second.kill()
    ledger = open_ledger(is_writer=False)
    used, running = ledger.read_all()["k"]
    assert used[:5] == (num, 3 * num, 0, 2 * num, 0.5 * num)
    assert running == 1
    assert [ledger.enter("k", entry(max_running=1), 1)[1] for _ in range(2)] == [True, False]
    ledger.leave("k", None, USED, 1)
    assert open_ledger().read_all()["k"][1] == 0


def test_the_file_is_private_and_a_bad_one_is_refused(tmp_path: Path, open_ledger: Open):
    open_ledger()
    assert (tmp_path / "u").stat().st_mode & 0o777 == 0o600
    (tmp_path / "bad").write_text("this is not a database, and longer than the header of one" * 20)
    with pytest.raises(BootError, match=r"cannot be kept in .*bad: file is not a database"):
        Ledger(tmp_path / "bad")
    with pytest.raises(BootError, match="No such file"):
        Ledger(tmp_path / "none" / "u")
    with pytest.raises(BootError, match="unable to open"):
        Ledger(tmp_path / "absent", is_writer=False)


def test_a_database_that_is_locked_is_logged_and_limits_nothing(
    tmp_path: Path, open_ledger: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("extras.keys.ledger.LOCK_TIMEOUT_S", 0.01)
    ledger, limited = open_ledger(), entry(requests_per_minute=1)
    assert ledger.enter("k", limited, 1)[1]
    other = sqlite3.connect(tmp_path / "u", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert [ledger.enter("k", limited, 1)[1] for _ in range(3)] == [True] * 3
    ledger.leave("k", limited, USED, 1)
    assert [record.message for record in caplog.records] == [
        "the usage of keys cannot be kept, and limits do not hold: database is locked"
    ]
    other.execute("ROLLBACK")
    other.close()
    assert not ledger.enter("k", limited, 1)[1]
