"""What the holders of keys have used, and what they may still use: a database that all frontends share.

The database is SQLite's, next to the file of the keys. A committed transaction outlives any process; a power cut may
lose the latest ones. `spent` is how much of a limit is used up: it falls by the whole limit in a minute.
"""

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import psutil

from extras.keys.key_file import KeyEntry
from messages.errors import BootError

MINUTE_S = 60.0
LOCK_TIMEOUT_S = 1.0
WARN_S = 60.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    key TEXT PRIMARY KEY, requests INTEGER NOT NULL DEFAULT 0, prompt_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0, limited INTEGER NOT NULL DEFAULT 0, spent_requests REAL NOT NULL DEFAULT 0,
    spent_tokens REAL NOT NULL DEFAULT 0, at REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS running (
    key TEXT, holder TEXT, num INTEGER NOT NULL, PRIMARY KEY (key, holder)
) WITHOUT ROWID;
"""

T = TypeVar("T")

log = logging.getLogger("sluice.frontend")


class KeyUsage(NamedTuple):
    """Sums since the key was first used. `seconds`: from arrival to end, summed over requests."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    limited: int = 0
    """Requests that a limit has refused."""


class Bucket(NamedTuple):
    """A limit a minute, and how much of it is used up."""

    limit: int
    spent: float

    @property
    def remaining(self) -> int:
        return max(0, int(self.limit - self.spent))

    @property
    def reset_s(self) -> float:
        """Seconds until nothing is used up."""
        return self.spent * MINUTE_S / self.limit

    def wait_s(self, amount: int) -> float:
        """Returns the seconds until `amount` is free, or the whole limit if that is less."""
        return max(0.0, self.spent + min(amount, self.limit) - self.limit) * MINUTE_S / self.limit


class Account(NamedTuple):
    """The state of a key; a bucket is `None` without a limit."""

    requests: Bucket | None = None
    tokens: Bucket | None = None
    num_running: int = 0

    def charged(self, num_requests: int, num_tokens: int) -> "Account":
        """Returns it with more used up, or with less for negative numbers."""
        return self._replace(requests=_charged(self.requests, num_requests), tokens=_charged(self.tokens, num_tokens))


def _charged(bucket: Bucket | None, amount: int) -> Bucket | None:
    return bucket and bucket._replace(spent=max(0.0, bucket.spent + amount))


class Ledger:
    """Raises `BootError` for a database that cannot be used. Errors that come later are logged, and nothing is limited.

    With `is_writer` the file is created if it does not exist.
    """

    def __init__(self, path: Path, *, is_writer: bool = True):
        self._holder = _holder(os.getpid())
        self._warned_s = -WARN_S
        try:
            if is_writer:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            uri = f"{path.absolute().as_uri()}?mode=rw"
            with contextlib.ExitStack() as stack:
                self._database = sqlite3.connect(uri, LOCK_TIMEOUT_S, isolation_level=None, uri=True)
                stack.callback(self._database.close)
                if is_writer:
                    self._database.execute("PRAGMA journal_mode = WAL")
                    self._database.execute("PRAGMA synchronous = NORMAL")
                    self._database.executescript(SCHEMA)
                    self._remove_dead()
                stack.pop_all()
        except (OSError, sqlite3.Error) as error:
            raise BootError(
                f"the usage of keys cannot be kept in {path}: {error}; --api-keys takes a second file for it"
            ) from None

    def close(self) -> None:
        self._database.close()

    def enter(self, key: str, entry: KeyEntry, num_tokens: int) -> tuple[Account, bool]:
        """Counts a request as running, with about `num_tokens` in its prompts, if the limits of the key allow it.

        Returns the account, and whether they do. Output tokens are charged when they are known, so a key may owe some;
        then nothing enters until enough are free again.
        """

        def enter() -> tuple[Account, bool]:
            account = self.balance(key, entry)
            if entry.max_running is not None and account.num_running >= entry.max_running:
                self._remove_dead()
                account = self.balance(key, entry)
            is_allowed = not find_waits(account, entry, num_tokens)
            if is_allowed:
                account = account.charged(1, num_tokens)._replace(num_running=account.num_running + 1)
                self._change_running(key, 1)
            self._write(key, account, KeyUsage(limited=not is_allowed))
            return account, is_allowed

        return self._carry_out(enter) or (Account(), True)

    def leave(self, key: str, entry: KeyEntry | None, used: KeyUsage, num_charged: int) -> None:
        """Ends a request: `num_charged` tokens were charged when it entered. No `requests`: it was not served."""

        def leave() -> None:
            num_tokens = used.prompt_tokens + used.output_tokens
            account = self.balance(key, entry).charged(used.requests - 1, num_tokens - num_charged)
            self._change_running(key, -1)
            self._write(key, account, used)

        self._carry_out(leave)

    def read_all(self) -> dict[str, tuple[KeyUsage, int]]:
        """Returns the usage of each key, and the number of its running requests. Raises `sqlite3.Error`."""
        columns = ", ".join(KeyUsage._fields)
        running = dict(self._database.execute("SELECT key, sum(num) FROM running GROUP BY key"))
        rows = self._database.execute(f"SELECT key, {columns} FROM usage")
        return {key: (KeyUsage(*values), running.get(key, 0)) for key, *values in rows}

    def balance(self, key: str, entry: KeyEntry | None) -> Account:
        """Returns the state of a key. Raises `sqlite3.Error`."""
        select = "SELECT spent_requests, spent_tokens, at FROM usage WHERE key = ?"
        *spent, at = self._database.execute(select, (key,)).fetchone() or (0.0, 0.0, 0.0)
        (num,) = self._database.execute("SELECT sum(num) FROM running WHERE key = ?", (key,)).fetchone()
        limits = (entry.requests_per_minute, entry.tokens_per_minute) if entry is not None else (None, None)
        elapsed_s = max(0.0, time.time() - at)
        requests, tokens = (
            None if limit is None else Bucket(limit, max(0.0, amount - elapsed_s * limit / MINUTE_S))
            for limit, amount in zip(limits, spent, strict=True)
        )
        return Account(requests, tokens, num or 0)

    def _carry_out(self, change: Callable[[], T]) -> T | None:
        """Calls `change` in a transaction and returns its result; `None` if the database cannot be used."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            result = change()
            self._database.execute("COMMIT")
            return result
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._database.rollback()
            if time.monotonic() - self._warned_s >= WARN_S:
                self._warned_s = time.monotonic()
                log.error("the usage of keys cannot be kept, and limits do not hold: %s", error)
            return None

    def _write(self, key: str, account: Account, used: KeyUsage) -> None:
        spent = [0.0 if bucket is None else bucket.spent for bucket in (account.requests, account.tokens)]
        sums = ", ".join(f"{name} = {name} + excluded.{name}" for name in KeyUsage._fields)
        names = ("key", *KeyUsage._fields, "spent_requests", "spent_tokens", "at")
        values = f"({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        self._database.execute(
            f"INSERT INTO usage {values} ON CONFLICT (key) DO UPDATE SET {sums}, spent_requests = "
            "excluded.spent_requests, spent_tokens = excluded.spent_tokens, at = excluded.at",
            (key, *used, *spent, time.time()),
        )

    def _change_running(self, key: str, change: int) -> None:
        self._database.execute(
            "INSERT INTO running VALUES (?, ?, ?) ON CONFLICT (key, holder) DO UPDATE SET num = num + excluded.num",
            (key, self._holder, change),
        )
        self._database.execute("DELETE FROM running WHERE holder = ? AND num <= 0", (self._holder,))

    def _remove_dead(self) -> None:
        """Removes what processes that have died were running."""
        for (holder,) in self._database.execute("SELECT DISTINCT holder FROM running").fetchall():
            if _holder(int(holder.partition(" ")[0])) != holder:
                self._database.execute("DELETE FROM running WHERE holder = ?", (holder,))


def _holder(pid: int) -> str:
    """Returns what identifies a process that lives; "" for one that does not."""
    try:
        return f"{pid} {psutil.Process(pid).create_time():.2f}"
    except psutil.Error:
        return ""


def find_waits(account: Account, entry: KeyEntry, num_tokens: int) -> dict[str, float]:
    """Returns the seconds to wait, by the reached limit, before a request with `num_tokens` may enter."""
    waits: dict[str, float] = {}
    if account.requests is not None and (wait_s := account.requests.wait_s(1)):
        waits["requests_per_minute"] = wait_s
    if account.tokens is not None and (wait_s := account.tokens.wait_s(num_tokens)):
        waits["tokens_per_minute"] = wait_s
    if entry.max_running is not None and account.num_running >= entry.max_running:
        waits["max_running"] = 1.0
    return waits
