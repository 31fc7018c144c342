"""The known state of each process (state, phase, beats), and when the frontends must receive it."""

import time
from collections.abc import Collection, Iterable

import msgspec

from messages.control.admin import Scaling
from messages.control.processes import Beat, ProcessState, ProcessStatus, ProcessTable, Ready, Stall, kind_of, place_of

READY = Ready()
CHANGE_INTERVAL_S = 0.1
"""Shortest time between two tables: a change waits for it only where changes come fast (rows that begin and end)."""

BEAT_INTERVAL_S = 0.9
"""Shortest time between two tables that differ in the age of beats alone."""


class StatusBoard:
    """The table of the processes. Times are `time.monotonic_ns()`."""

    def __init__(self, names: list[str], hang_timeout_s: float):
        self._places = list(names)
        self._statuses = {name: ProcessStatus(name, "starting", phase="not started") for name in names}
        self._hang_timeout_s = hang_timeout_s
        self._progress_ns = dict.fromkeys(names, time.monotonic_ns())
        self._resumed_ns = 0
        self._stalls: tuple[Stall, ...] = ()
        self._num_stalls: dict[str, int] = {}
        self.scaling: Scaling | None = None
        """The wanted number of engines, if it changes by itself."""
        self._published_ns = 0
        self._has_changed = True
        self._has_beats = False

    def add(self, name: str, num_restarts: int = 0) -> None:
        """Makes room for one more process."""
        place = place_of(name)
        if place not in self._places:
            kinds = [kind_of(other) for other in self._places]
            last = max((index for index, kind in enumerate(kinds) if kind == kind_of(name)), default=len(kinds))
            self._places.insert(last + 1, place)
        self._statuses[name] = ProcessStatus(name, "starting", phase="not started", num_restarts=num_restarts)
        self._record_progress(name)

    def remove(self, name: str) -> None:
        """Forgets a process that is not part of the run any more."""
        del self._statuses[name], self._progress_ns[name]
        self._has_changed = True

    def rename(self, name: str, new_name: str) -> None:
        """Shows under `new_name`, in place of whatever that was, the process that was shown as `name`."""
        status, replaced = self._statuses.pop(name), self._statuses.get(new_name)
        before, num_restarts = status.counted_before, status.num_restarts
        if replaced is not None:
            before, num_restarts = replaced.counted, max(num_restarts, replaced.num_restarts)
        self._statuses[new_name] = msgspec.structs.replace(
            status, name=new_name, counted_before=before, num_restarts=num_restarts
        )
        self._progress_ns[new_name] = self._progress_ns.pop(name)
        self._has_changed = True

    def awaited(self, name: str, is_awaited: bool = True) -> None:
        """Records whether requests wait for the successor of process `name`, which is being replaced on command."""
        self._replace(name, is_awaited=is_awaited)

    def killed(self, name: str) -> None:
        """Notes that process `name`, which hung, has been killed and will be replaced."""
        self._replace(name, is_killed=True)

    def leaving(self, name: str, is_leaving: bool = True) -> None:
        """Records whether process `name` gets no new work."""
        self._replace(name, is_leaving=is_leaving)

    def standing_by(self, name: str) -> None:
        """Notes that process `name` waits to take the place of another."""
        self._replace(name, state="standby", phase="", fraction=None, beat_ns=time.monotonic_ns())

    def waiting_for_successor(self, name: str) -> None:
        """Notes that process `name` has ended and another one, already started, will take its place."""
        self._replace(name, state="restarting")

    def taking_over(self, name: str, incarnation: int, is_by_command: bool) -> None:
        """Notes that process `name` has got its place, by command or after a death, and is about to serve there."""
        self._replace(name, state="starting", phase="taking over", incarnation=incarnation)
        self._replace(name, is_awaited=is_by_command, is_by_command=is_by_command)
        self._record_progress(name)

    def status(self, name: str) -> ProcessStatus:
        return self._statuses[name]

    def statuses(self) -> tuple[ProcessStatus, ...]:
        """Returns all, in the order of their places; a successor or predecessor follows the process it belongs to."""
        return tuple(sorted(self._statuses.values(), key=lambda status: self._places.index(place_of(status.name))))

    def is_ready(self, may_be_absent: Collection[str] = ()) -> bool:
        """True if every process serves; those named here may be absent, but not all of their kind."""
        up = {kind_of(name) for name, status in self._statuses.items() if status.is_up}
        statuses = self._statuses.items()
        return all(status.is_up or (name in may_be_absent and kind_of(name) in up) for name, status in statuses)

    def started(self, name: str, pid: int, incarnation: int, uid_block: int = 0) -> None:
        """Notes a new incarnation of process `name`."""
        last = self._statuses[name]
        status = ProcessStatus(name, "starting", pid, incarnation, phase="starting", uid_block=uid_block)
        kept = {"num_restarts": last.num_restarts, "counted_before": last.counted, "placement": last.placement}
        self._statuses[name] = msgspec.structs.replace(status, **kept)
        self._record_progress(name)

    def phase(self, name: str, text: str, fraction: float | None) -> bool:
        """Notes what process `name` does while it starts; returns whether this is a new phase."""
        is_new = self._statuses[name].phase != text
        self._replace(name, phase=text, fraction=fraction)
        self._record_progress(name)
        return is_new

    def ready(self, name: str, message: Ready = READY) -> None:
        """Notes that process `name` serves, perhaps without something."""
        self._replace(name, state="ready", phase="", fraction=None, beat_ns=time.monotonic_ns(), is_awaited=False)
        self._replace(name, degraded=message.degraded, placement=message.placement)

    def gone(self, name: str) -> None:
        """Notes that process `name` does not run any more, and keeps its last reports."""
        self._replace(name, state="dead")

    def ended(self, name: str) -> None:
        """Notes that process `name` does not run any more."""
        counted = self._statuses[name].counted
        self._replace(name, state="dead", pid=0, phase="", fraction=None, busy_since_ns=0, gauges={}, histograms={})
        self._replace(name, sent={}, received={}, frontend=None, degraded="", counted_before=counted)

    def restarting(self, name: str) -> None:
        """Notes that process `name`, which has ended, will be replaced."""
        self._replace(name, state="restarting", num_restarts=self._statuses[name].num_restarts + 1, is_awaited=False)

    def beat(self, name: str, beat: Beat) -> bool:
        """Notes a sign of life; returns whether the process had been taken for hung."""
        old = self._statuses[name].state
        state: ProcessState = old
        if self._statuses[name].is_up:
            state = "busy" if beat.busy_since_ns else "ready"
        has_changed = self._has_changed or state != old
        fields = msgspec.structs.asdict(beat)
        self._replace(name, state=state, beat_ns=fields.pop("sent_ns"), **fields)
        self._has_beats, self._has_changed = True, has_changed
        return old == "hung"

    def resume(self, now_ns: int) -> None:
        """Notes that the launcher was stopped until now: the other processes may have been, too, and are not late."""
        self._resumed_ns = now_ns

    def find_newly_hung(self, now_ns: int) -> list[ProcessStatus]:
        """Marks the processes whose last beat is too old, and returns them."""
        hung = [
            status
            for status in self._statuses.values()
            if status.is_serving and now_ns - max(status.beat_ns, self._resumed_ns) > self._hang_timeout_s * 1e9
        ]
        for status in hung:
            self._replace(status.name, state="hung")
        return hung

    def record_stalls(self, new: Iterable[Stall], ongoing: Iterable[Stall]) -> None:
        """Counts the new ones, and notes which ones continue."""
        stalls = tuple(ongoing)
        for stall in new:
            self._num_stalls[stall.kind] = self._num_stalls.get(stall.kind, 0) + 1
        self._has_changed = self._has_changed or stalls != self._stalls
        self._stalls = stalls

    def seconds_without_progress(self, name: str, now_ns: int) -> float:
        """Returns for how long process `name` has been in its present phase, or 0 if it is not starting."""
        is_starting = self._statuses[name].state == "starting"
        return (now_ns - max(self._progress_ns[name], self._resumed_ns)) / 1e9 if is_starting else 0.0

    def due_in_s(self, now_ns: int) -> float | None:
        """Seconds until the frontends must receive the next table, 0 for now; `None` if nothing is new."""
        if not (self._has_changed or self._has_beats):
            return None
        interval_s = CHANGE_INTERVAL_S if self._has_changed else BEAT_INTERVAL_S
        return max(0.0, interval_s - (now_ns - self._published_ns) / 1e9)

    def publish(self, now_ns: int) -> ProcessTable:
        """Returns the table for the frontend, and counts it as sent."""
        self._published_ns = now_ns
        self._has_changed = self._has_beats = False
        return ProcessTable(self.statuses(), self._stalls, self._num_stalls, self.scaling)

    def _record_progress(self, name: str) -> None:
        self._progress_ns[name] = time.monotonic_ns()
        self._has_changed = True

    def _replace(self, name: str, **fields: object) -> None:
        self._statuses[name] = msgspec.structs.replace(self._statuses[name], **fields)
        self._has_changed = True
