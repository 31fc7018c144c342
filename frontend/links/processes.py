"""The state of the other processes, from the launcher's table; the ring is never asked."""

import time
from collections.abc import Mapping
from typing import Literal

import msgspec

from frontend.errors import UnavailableError
from messages.control.admin import Scaling
from messages.control.histograms import CounterTotals
from messages.control.processes import (
    FRONTEND,
    RING,
    WAITING,
    ProcessState,
    ProcessStatus,
    ProcessTable,
    Stall,
    StallKind,
    age_s,
    kind_of,
    place_of,
    worker_number,
)
from messages.engine_names import RANK, SCHEDULER, engine_name
from messages.ring.requests import DropBefore
from messages.ring.uids import find_gone

ServerState = Literal["ready", "starting", "draining", "unhealthy"]

PAGE_KINDS = "pages", "window_pages", "state_slots"
"""The prefixes of the gauges of pages, of those of layers with a window, and of slots for recurrent states."""

SILENCE_S = 3.0
"""A running main loop sends a beat once a second."""


class ProcessHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process in `/health`. `phase` and `fraction` are set while it starts, `busy_s` while a step runs.

    `degraded`: why it serves, but slower than it should. `incarnation` counts its starts; `num_restarts` counts those
    that replaced a process that died or hung.
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
    degraded: str = ""


class StallHealth(msgspec.Struct, frozen=True):
    """A stall in `/health`: the suspected process, the duration, and a description."""

    kind: StallKind
    process: str
    age_s: float
    text: str


class ProcessView:
    """The latest table."""

    def __init__(self, *, has_started: bool = False) -> None:
        self._processes: dict[str, ProcessStatus] = {}
        self._stalls: tuple[Stall, ...] = ()
        self.num_stalls: dict[str, int] = {}
        """Stalls since the start of the run, by kind."""
        self.scaling: Scaling | None = None
        """Set if the number of engines is adjusted automatically."""
        self.has_started = has_started
        """True once every process of the ring has been ready, even before this frontend started."""

    @property
    def is_known(self) -> bool:
        """True if a table has arrived."""
        return bool(self._processes)

    def update(self, table: ProcessTable) -> None:
        self._processes = {status.name: status for status in table.processes}
        self._stalls, self.num_stalls = table.stalls, table.num_stalls
        self.scaling = table.scaling
        self.has_started = self.has_started or self.is_ready

    @property
    def is_ready(self) -> bool:
        """True if the ring is closed: at least one process of each kind in it is serving."""
        return all(any(status.is_serving for status in self._of_kind(kind)) for kind in RING)

    @property
    def is_open(self) -> bool:
        """True if requests may enter: same as `is_ready`, but a process that is certain to serve soon counts, too."""
        return all(any(status.is_serving or status.is_awaited for status in self._of_kind(kind)) for kind in RING)

    @property
    def is_recovering(self) -> bool:
        """True if requests may enter now, or will once the restarting processes are back."""
        return self.has_started and all(
            any(status.is_serving or status.is_awaited or _returns(status) for status in self._of_kind(kind))
            for kind in RING
        )

    def placements(self, kind: str = SCHEDULER) -> dict[str, dict[str, str]]:
        """Returns the placement and formats that each process of the kind has reported."""
        return {status.name: status.placement for status in self._of_kind(kind) if status.placement}

    def workers(self, kind: str) -> list[str]:
        """Returns the names of the processes of `kind` that accept work now."""
        return [status.name for status in self._of_kind(kind) if status.is_serving and not status.is_leaving]

    def serving(self) -> dict[str, int]:
        """Returns the processes of the ring that serve now, with their incarnations."""
        return {name: incarnation for kind in RING for name, incarnation in self.serving_of(kind).items()}

    def serving_of(self, kind: str) -> dict[str, int]:
        """Returns the processes of `kind` that serve now, with their incarnations."""
        return {status.name: status.incarnation for status in self._of_kind(kind) if status.is_serving}

    def open_engines(self) -> tuple[int, ...]:
        """Returns the numbers of the schedulers that accept requests now or, if none does, will soon."""
        places = [status for status in self._of_kind(SCHEDULER) if not status.is_leaving]
        serving = [status for status in places if status.is_serving]
        return tuple(worker_number(one.name) for one in serving or [one for one in places if one.is_awaited])

    def leaving_engines(self) -> set[int]:
        """Returns the numbers of the schedulers that are serving but must hand their requests to others."""
        if not any(status.is_leaving for status in self._processes.values()):
            return set()
        others = self.open_engines()
        return {worker_number(one.name) for one in self._of_kind(SCHEDULER) if one.is_leaving and others}

    @property
    def num_engines(self) -> int:
        """The number of schedulers, serving or not."""
        return max(1, sum(not status.is_leaving for status in self._of_kind(SCHEDULER)))

    def engine_gauges(self) -> dict[int, dict[str, float]]:
        """Returns the gauges in each scheduler's last beat, by number."""
        return {worker_number(status.name): status.gauges for status in self._of_kind(SCHEDULER)}

    def _sum_gauge(self, key: str) -> float:
        return sum(gauges.get(key, 0.0) for gauges in self.engine_gauges().values())

    def _of_kind(self, kind: str) -> list[ProcessStatus]:
        """Returns the processes of `kind`, without standbys."""
        return [status for name, status in self._processes.items() if kind_of(name) == kind and place_of(name) == name]

    def fronts(self) -> list[ProcessStatus]:
        """Returns the started frontends, including this one, standbys and leaving ones."""
        return [status for name, status in self._processes.items() if kind_of(name) == FRONTEND and status.uid_block]

    def other_fronts(self, own_block: int) -> list[ProcessStatus]:
        """Returns the frontends that may hold requests, except the one with this block of uids."""
        return [status for status in self.fronts() if status.uid_block != own_block and status.is_up]

    def name_of_front(self, block: int) -> str | None:
        """Returns the current name of the frontend with this block of uids, `None` if it is not in the table."""
        return next((status.name for status in self.fronts() if status.uid_block == block), None)

    def find_gone_frontends(self, own_block: int) -> DropBefore | None:
        """Returns the message that makes the ring drop the requests of ended frontends, from the one with this block.

        The message stays the same until another frontend ends.
        """
        started = [status.uid_block for status in self.fronts()]
        return find_gone([own_block, *started], self.living_blocks(own_block))

    def living_blocks(self, own_block: int) -> list[int]:
        """Returns the blocks of uids of the frontends that are alive, one of which has this block."""
        started = self.fronts()
        return [own_block, *[entry.uid_block for entry in started if entry.state not in ("dead", "restarting")]]

    def has_died(self, name: str) -> bool:
        """True if a process that ended, and may have been replaced, did so without a command."""
        status = self._processes.get(name)
        if status is None or status.is_leaving or status.is_awaited:
            return False
        return not (status.is_serving and status.is_by_command)

    def statuses(self) -> list[ProcessStatus]:
        """Returns the latest status of every process."""
        return list(self._processes.values())

    def gauges(self, name: str) -> dict[str, float]:
        """Returns the gauges in the last beat of process `name`; none if it does not exist."""
        return self._processes[name].gauges if name in self._processes else {}

    @property
    def num_waiting(self) -> float:
        """The number of requests that wait for a row or, in a frontend, for a process that is being replaced."""
        return self._sum_gauge("waiting") + self.num_on_hold

    @property
    def num_running(self) -> float:
        """The number of requests that have a row."""
        return self._sum_gauge("running")

    @property
    def num_on_hold(self) -> int:
        """The number of requests that wait in a frontend for a process that is being replaced."""
        return sum(front.frontend.num_on_hold for front in self.fronts() if front.frontend)

    @property
    def kv_cache_usage(self) -> float:
        """The fraction of all pages that running requests use, by the schedulers' gauges."""
        names = [f"{kind}_{part}" for kind in PAGE_KINDS for part in ("in_use", "all")]
        return kv_cache_usage({name: self._sum_gauge(name) for name in names})

    def counted(self, kind: str = SCHEDULER) -> dict[int, CounterTotals]:
        """Returns the counts of each process of `kind` and its predecessors since the run began, by number."""
        return {worker_number(status.name): status.counted for status in self._of_kind(kind)}

    def num_restarts(self, name: str) -> int:
        return self._processes[name].num_restarts if name in self._processes else 0

    def check_ready(self, hold_s: float = 0.0) -> None:
        """Raises `UnavailableError` if no request may enter; with `hold_s`, only if none will soon either."""
        if not (self.is_open or (hold_s and self.is_recovering)):
            raise self.not_ready()

    def not_ready(self) -> UnavailableError:
        """Returns the refusal, which names the processes that do not serve and the reasons."""
        waiting: list[str] = []
        for kind in RING:
            places = self._of_kind(kind)
            if not any(status.is_serving for status in places):
                waiting += [_describe(status) for status in places] or [f"{kind} has not started"]
        waiting += self.missing_stages()
        return UnavailableError(f"the server is not ready: {', '.join(waiting)}", "not_ready")

    def missing_stages(self) -> list[str]:
        """Returns the stages that wait for a machine to join, with their addresses."""
        starting = [status for status in self._of_kind(RANK) if status.state == "starting"]
        return [_describe(status) for status in starting if status.phase.startswith(WAITING)]

    def find_trouble(self, engine: int) -> str:
        """Returns which processes on the path of this engine's requests do not serve or are silent; "" if none."""
        now_ns, name = time.monotonic_ns(), engine_name(engine)
        others = {status.name for status in self._of_kind(SCHEDULER)} - {name}
        found = [
            _find_trouble(status, now_ns)
            for kind in RING
            for status in self._of_kind(kind)
            if status.name not in others
        ]
        return ", ".join(text for text in found if text)

    def stalls(self) -> list[StallHealth]:
        """Returns the current stalls."""
        now_ns = time.monotonic_ns()
        return [
            StallHealth(one.kind, one.process, age_s(one.since_ns, now_ns) or 0.0, one.text) for one in self._stalls
        ]

    def health(self) -> dict[str, ProcessHealth]:
        """Returns the health of each process by name, with current ages."""
        now_ns = time.monotonic_ns()
        return {name: _health(status, now_ns) for name, status in self._processes.items()}


def kv_cache_usage(gauges: Mapping[str, float]) -> float:
    """Returns the fraction of all pages that running requests use, by a scheduler's gauges.

    It is the largest of those of the pages, the window pages and the state slots that the model has.
    """
    return max(gauges.get(f"{kind}_in_use", 0.0) / max(1.0, gauges.get(f"{kind}_all", 0.0)) for kind in PAGE_KINDS)


def _returns(status: ProcessStatus) -> bool:
    """True if the launcher is starting this process or its successor; False if it is dead or merely hangs."""
    return status.state in ("starting", "restarting") or status.is_killed


def _describe(status: ProcessStatus) -> str:
    fraction = "" if status.fraction is None else f" {status.fraction:.0%}"
    return f"{status.name} is {status.state}" + (f" ({status.phase}{fraction})" if status.phase else "")


def _find_trouble(status: ProcessStatus, now_ns: int) -> str:
    """Returns why a process makes no progress, "" if it does."""
    if not status.is_serving:
        return _describe(status)
    silent_s = (now_ns - status.beat_ns) / 1e9
    if status.beat_ns and silent_s > SILENCE_S:
        busy = " (processing a step or a long text)" if status.busy_since_ns else ""
        return f"{status.name} has been silent for {silent_s:.1f} s{busy}"
    return ""


def _health(status: ProcessStatus, now_ns: int) -> ProcessHealth:
    is_starting = status.state == "starting"
    shown = {
        "beat_age_s": age_s(status.beat_ns, now_ns),
        "busy_s": age_s(status.busy_since_ns, now_ns),
        "phase": (is_starting and status.phase) or None,
        "fraction": status.fraction if is_starting else None,
    }
    return msgspec.convert(msgspec.structs.asdict(status) | shown, ProcessHealth)
