"""What the frontend knows of the other processes, from the launcher's table; it never asks the ring."""

import time
from collections.abc import Iterable
from typing import Literal

import msgspec

from frontend.errors import UnavailableError
from messages.control import ProcessState, ProcessStatus, ProcessTable

RING = ("tokenizer", "scheduler", "detokenizer")
"""The processes that a request passes through."""

ServerState = Literal["ready", "starting", "draining", "unhealthy"]


class ProcessHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process in `/health`; `phase` and `fraction` while it starts, `busy_s` while a step runs.

    `incarnation` counts its starts, `num_restarts` those of them that replaced a process that had died or hung.
    """

    state: ProcessState
    pid: int
    incarnation: int
    beat_age_s: float | None
    gauges: dict[str, float]
    num_restarts: int
    busy_s: float | None = None
    phase: str | None = None
    fraction: float | None = None


class ProcessView:
    """The latest table."""

    def __init__(self) -> None:
        self._processes: dict[str, ProcessStatus] = {}
        self.has_started = False
        """True from the first moment at which every process of the ring was ready."""

    def update(self, table: ProcessTable) -> None:
        self._processes = {status.name: status for status in table.processes}
        self.has_started = self.has_started or self.is_ready

    @property
    def is_ready(self) -> bool:
        """Tells whether every process of the ring serves now."""
        return all(_serves(self._processes.get(name)) for name in RING)

    def incarnations(self, names: Iterable[str]) -> dict[str, int]:
        """Returns the incarnation of each of `names`, 0 for one that has not been heard of."""
        return {name: self._processes[name].incarnation if name in self._processes else 0 for name in names}

    def num_restarts(self, name: str) -> int:
        return self._processes[name].num_restarts if name in self._processes else 0

    def check_ready(self) -> None:
        """Raises `UnavailableError`, saying which processes do not serve and why."""
        if not self.is_ready:
            waiting = [_describe(name, self._processes.get(name)) for name in RING]
            raise UnavailableError(
                f"the server is not ready: {', '.join(text for text in waiting if text)}", "not_ready"
            )

    def health(self) -> dict[str, ProcessHealth]:
        """Returns each process by name, with ages as of now."""
        now_ns = time.monotonic_ns()
        return {name: _health(status, now_ns) for name, status in self._processes.items()}


def _serves(status: ProcessStatus | None) -> bool:
    return status is not None and status.state in ("ready", "busy")


def _describe(name: str, status: ProcessStatus | None) -> str:
    if _serves(status):
        return ""
    if status is None:
        return f"{name} has not started"
    fraction = "" if status.fraction is None else f" {status.fraction:.0%}"
    return f"{name} is {status.state}" + (f" ({status.phase}{fraction})" if status.phase else "")


def _health(status: ProcessStatus, now_ns: int) -> ProcessHealth:
    is_starting = status.state == "starting"
    return ProcessHealth(
        state=status.state,
        pid=status.pid,
        incarnation=status.incarnation,
        beat_age_s=_age_s(status.beat_ns, now_ns),
        gauges=status.gauges,
        num_restarts=status.num_restarts,
        busy_s=_age_s(status.busy_since_ns, now_ns),
        phase=status.phase if is_starting and status.phase else None,
        fraction=status.fraction if is_starting else None,
    )


def _age_s(since_ns: int, now_ns: int) -> float | None:
    return round(max(0, now_ns - since_ns) / 1e9, 3) if since_ns else None
