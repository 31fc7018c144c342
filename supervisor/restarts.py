"""Decides which dead process is started again, and when: the rules, the back-off and the limit.

Times are `time.monotonic()`, given by the caller.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from messages.config.server import RunConfig
from messages.control.processes import kind_of
from messages.errors import SluiceError, UsageError

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 4.0
"""Short, so that a process that dies as soon as it starts soon reaches the limit, which ends the run."""

HEALTHY_S = 10.0
"""A process that has served for this long is healthy: its next death does not count as part of a series."""

MINUTE_S = 60.0
RULES = ("always", "never")


class NoRestartError(SluiceError):
    """A process that has died must not be started again; the text is the reason."""


@dataclass(frozen=True)
class Restart:
    """A process is started again in `pause_s`; `text` is for the operator."""

    pause_s: float
    text: str


class Restarts:
    """Decides after each death, and remembers which processes are to be started again."""

    def __init__(self, settings: RunConfig):
        self._never = {name for name, rule in map(split_rule, settings.restart) if rule == "never"}
        self._max_per_min = settings.max_restarts_per_min
        self._series: dict[str, int] = {}
        """Deaths in quick succession by process."""
        self._ready_s: dict[str, float] = {}
        """Since when the processes that serve have served."""
        self._last_minute: deque[float] = deque()
        self._due_s: dict[str, float] = {}

    def is_requested(self, name: str) -> bool:
        """True if process `name` is started again when it dies, as far as its own rule goes."""
        return kind_of(name) not in self._never

    def record_ready(self, name: str, now_s: float) -> None:
        """Notes that process `name` serves from now on."""
        self._ready_s[name] = now_s

    def record_death(self, name: str, now_s: float, is_ready: bool = False) -> Restart:
        """Returns when process `name` will be due to start again, at once where the next one `is_ready`.

        Raises `NoRestartError` if it must stay dead.
        """
        served_s = now_s - self._ready_s.pop(name, now_s)
        if not self.is_requested(name):
            raise NoRestartError(f"it is not started again: --restart {name}=never")
        while self._last_minute and now_s - self._last_minute[0] >= MINUTE_S:
            self._last_minute.popleft()
        if len(self._last_minute) >= self._max_per_min:
            raise NoRestartError(
                f"it is not started again: there were {len(self._last_minute)} restarts in the last minute "
                f"and --max-restarts-per-min is {self._max_per_min}"
            )
        self._last_minute.append(now_s)
        series = 0 if served_s >= HEALTHY_S else self._series.get(name, 0)
        self._series[name] = series + 1
        pause_s = 0.0 if is_ready else pause_before(series)
        self._due_s[name] = now_s + pause_s
        text = f"restarting in {pause_s:g} s ({len(self._last_minute)} of {self._max_per_min} a minute)"
        return Restart(pause_s, text)

    def due_in_s(self, now_s: float) -> float:
        """Seconds until the next restart is due: 0 if it is due now, `inf` if none is scheduled."""
        return max(0.0, min(self._due_s.values(), default=float("inf")) - now_s)

    def pop_due(self, now_s: float) -> list[str]:
        """Returns, and forgets, the processes that are to be started now."""
        due = [name for name, due_s in self._due_s.items() if due_s <= now_s]
        for name in due:
            del self._due_s[name]
        return due

    def cancel(self) -> None:
        """Cancels all scheduled restarts."""
        self._due_s.clear()


def pause_before(num_deaths_before: int) -> float:
    """Returns the seconds before the next start: 0, 0.5, 1, 2, 4, 4 … for deaths in quick succession."""
    if num_deaths_before == 0:
        return 0.0
    return min(FIRST_PAUSE_S * 2.0 ** min(num_deaths_before - 1, 16), LONGEST_PAUSE_S)


def split_rule(rule: str) -> tuple[str, str]:
    """`scheduler=never` → (`scheduler`, `never`)."""
    name, _, word = rule.partition("=")
    return name, word


def check_rules(rules: Iterable[str]) -> None:
    """Raises `UsageError` for a rule that is not NAME=always or NAME=never, and where one contradicts another."""
    known: dict[str, str] = {}
    for rule in rules:
        name, word = split_rule(rule)
        if word not in RULES:
            raise UsageError(f"--restart: {rule!r} is not valid: expected NAME=always or NAME=never")
        if known.setdefault(name, word) != word:
            raise UsageError(f"--restart: {name} cannot be both always and never")
