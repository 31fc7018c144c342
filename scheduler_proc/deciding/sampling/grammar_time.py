"""Limits the time of grammars' bitmasks per HTTP request, since all rows of a step wait for them."""

import math
import time
from weakref import WeakValueDictionary

from messages.errors import ErrorInfo

FREE_MASK_S = 0.0002
"""The time allowed per bitmask. Only the excess counts, in CPU time of the thread, so a busy machine has no effect."""

MAX_EXCESS_S = 0.5
FORGET_S = 5.0
"""Counted time decays with this time constant, so an occasional slow bitmask never fails a grammar."""

SLOW_EXCESS_S = 0.05


class TimeAccount:
    """The time that the grammars of one HTTP request have taken, over all its prompts and choices.

    `error` is set once the grammars have failed.
    """

    __slots__ = ("__weakref__", "_excess_s", "_recorded_s", "_time", "error")

    def __init__(self, grammar_time: "GrammarTime"):
        self._time = grammar_time
        self._excess_s = 0.0
        self._recorded_s = 0.0
        self.error: ErrorInfo | None = None

    @property
    def is_slow(self) -> bool:
        return self._excess_s > SLOW_EXCESS_S

    def charge(self, spent_s: float) -> None:
        """Counts the time of a bitmask. Fails the slowest requests while the total of all is over the limit."""
        if spent_s > FREE_MASK_S:
            now_s = time.monotonic()
            self._excess_s = self.excess_s(now_s) + spent_s - FREE_MASK_S
            self._recorded_s = now_s
            self._time.check(now_s)

    def excess_s(self, now_s: float) -> float:
        return self._excess_s * math.exp((self._recorded_s - now_s) / FORGET_S)

    def give_up(self) -> None:
        self._excess_s = 0.0
        words = "finding the tokens that may come takes too long: make it simpler"
        self.error = ErrorInfo(400, f"the grammar cannot be followed any further: {words}")


class GrammarTime:
    """The accounts of all HTTP requests with a grammar. Only for one thread."""

    def __init__(self) -> None:
        self._accounts: WeakValueDictionary[int, TimeAccount] = WeakValueDictionary()

    def account_of(self, received_ns: int) -> TimeAccount:
        """Returns the account of the HTTP request received at this time."""
        account = self._accounts.get(received_ns)
        if account is None:
            account = self._accounts[received_ns] = TimeAccount(self)
        return account

    def check(self, now_s: float) -> None:
        """Fails the slowest requests until the total is at most `MAX_EXCESS_S`."""
        excesses = sorted((account.excess_s(now_s), id(account), account) for account in self._accounts.values())
        total_s = sum(excess_s for excess_s, _, _ in excesses)
        while total_s > MAX_EXCESS_S:
            excess_s, _, worst = excesses.pop()
            worst.give_up()
            total_s -= excess_s
