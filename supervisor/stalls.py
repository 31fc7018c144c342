"""Detects stalls: requests wait without a known reason, and nothing makes progress.

All evidence comes from beats and their times: a process in a long step sends none, so it cannot be mistaken for one
that turns its loop and does nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from messages.control.processes import (
    FRONTEND,
    ProcessStatus,
    QuietRequest,
    Stall,
    StallKind,
    kind_of,
    place_of,
    worker_number,
)
from messages.engine_names import SCHEDULER
from messages.frontends import socket_of
from supervisor.process_files import RunState

DETOKENIZER = "detokenizer"
TOKENIZER = "tokenizer"

NUM_INTERVALS = 20
"""A stream stalls after this multiple of the median time between its tokens (and `--stall-s`) without a token."""

DELIVERY_NS = 2_000_000_000
"""Time for a frame to arrive and to be reported in a beat."""

SILENCE_NS = 5_000_000_000
"""Beats are up to two seconds apart, and on a busy machine a process may have to wait for a core."""

MAX_NAMED = 3


class SteadyValue:
    """A value, and since when it has not changed."""

    def __init__(self) -> None:
        self._value: Any = None
        self.since_ns = 0

    def record(self, value: object, now_ns: int) -> int:
        """Returns the ns for which it has been `value`."""
        if value != self._value:
            self._value, self.since_ns = value, now_ns
        return now_ns - self.since_ns


class PossibleStall(NamedTuple):
    """A process that seems to stall now."""

    kind: StallKind
    process: str
    since_ns: int
    what: str
    requests: tuple[QuietRequest, ...] = ()


class StallDetector:
    """Compares each process table with those before it. Times are `time.monotonic_ns()`.

    `run_state_of` returns whether a pid has been stopped; it is called only for a process without a sign of life.
    """

    def __init__(self, stall_s: float, run_state_of: Callable[[int], RunState]):
        self._limit_ns = round(stall_s * 1e9)
        self._run_state_of = run_state_of
        self.open: dict[str, Stall] = {}
        """The current stalls, at most one for each process at fault."""
        self.forget(0)

    def forget(self, now_ns: int) -> None:
        """Starts over: a process is away, or the launcher was stopped, perhaps with the whole machine."""
        self._since_ns = now_ns
        self._steps = defaultdict[str, SteadyValue](SteadyValue)
        self._admitted = defaultdict[str, SteadyValue](SteadyValue)
        """Both by scheduler."""
        self._tokenized = defaultdict[str, SteadyValue](SteadyValue)
        """By tokenizer."""
        self._edges: dict[int, _Edge] = {}
        self._suspects: dict[tuple[int, int], int] = {}
        """By uid and time of the latest token: when the scheduler's loop turned, and that was too long ago already."""

    def look(self, statuses: Collection[ProcessStatus], now_ns: int) -> list[Stall]:
        """Returns the new stalls. A stall is returned again only after its process has made progress."""
        found: dict[str, PossibleStall] = {}
        num_open = sum(status.gauges.get("requests", 0) for status in statuses if kind_of(status.name) == FRONTEND)
        if not all(status.is_up or place_of(status.name) != status.name for status in statuses):
            self.forget(now_ns)
        elif num_open:
            for each in self._find(statuses, now_ns):
                found.setdefault(each.process, each)
        new = [_describe(each, statuses, now_ns) for name, each in found.items() if name not in self.open]
        self.open = {name: stall for name, stall in self.open.items() if name in found}
        self.open |= {stall.process: stall for stall in new}
        return new

    def _find(self, statuses: Collection[ProcessStatus], now_ns: int) -> Iterator[PossibleStall]:
        """Yields the current stalls, the most certain and exact evidence first."""
        for status in statuses:
            yield from self._find_silence(status, now_ns)
            if kind_of(status.name) == TOKENIZER and place_of(status.name) == status.name:
                yield from self._find_unread(status)
        yield from self._find_edges(statuses)
        schedulers = [one for one in statuses if kind_of(one.name) == SCHEDULER and place_of(one.name) == one.name]
        for scheduler in schedulers:
            yield from self._find_queue(scheduler, [status for status in statuses if status.frontend])
        yield from self._find_streams({worker_number(one.name): one for one in schedulers}, statuses)

    def _find_silence(self, status: ProcessStatus, now_ns: int) -> Iterator[PossibleStall]:
        """A process sends no beat although it is in no step, or it was stopped."""
        limit_ns = max(self._limit_ns, SILENCE_NS)
        if not status.beat_ns or now_ns - max(status.beat_ns, self._since_ns) < limit_ns or not status.is_up:
            return
        run_state = self._run_state_of(status.pid)
        if run_state == "stopped" or (run_state == "runs" and not status.busy_since_ns):
            why = "it was stopped by a signal" if run_state == "stopped" else "it is in no step"
            yield PossibleStall("process", status.name, status.beat_ns, f"gives no sign, and {why}")

    def _find_edges(self, statuses: Collection[ProcessStatus]) -> Iterator[PossibleStall]:
        receivers = {socket_of(status): status for status in statuses if status.is_serving}
        known, self._edges = self._edges, {}
        for status in statuses:
            for name, (sender_id, num_sent) in status.sent.items():
                receiver = receivers.get(name)
                if receiver is None or num_sent <= receiver.received.get(sender_id, (0, 0))[1]:
                    continue
                edge = self._edges[sender_id] = known.get(sender_id) or _Edge()
                stuck_ns = edge.record(num_sent, status.beat_ns, receiver, receiver.received.get(sender_id, (0, 0))[1])
                if stuck_ns >= self._limit_ns:
                    what = (
                        f"turns its loop and takes nothing from {status.name}: of {num_sent} frames that were sent it "
                        f"has taken {edge.num_taken}"
                    )
                    yield PossibleStall("edge", receiver.name, edge.since_ns, what)

    def _find_unread(self, tokenizer: ProcessStatus) -> Iterator[PossibleStall]:
        """A tokenizer has held a request for a long time and has finished none since."""
        gauges = tokenizer.gauges
        tokenized, waited_ns = self._tokenized[tokenizer.name], round(gauges.get("waiting_s", 0.0) * 1e9)
        still_ns = tokenized.record((tokenizer.pid, gauges.get("num_tokenized"), waited_ns > 0), tokenizer.beat_ns)
        if min(still_ns, waited_ns) >= self._limit_ns:
            what = f"passes no request on, with {int(gauges.get('chars_in_hand', 0))} characters in hand"
            yield PossibleStall("queue", tokenizer.name, max(tokenized.since_ns, tokenizer.beat_ns - waited_ns), what)

    def _find_queue(self, scheduler: ProcessStatus, fronts: Iterable[ProcessStatus]) -> Iterator[PossibleStall]:
        """A scheduler that runs no step is reported only if no stream can be reported in its place."""
        gauges, beat_ns = scheduler.gauges, scheduler.beat_ns
        num_running, num_waiting = int(gauges.get("running", 0)), int(gauges.get("waiting", 0))
        steps, admitted = self._steps[scheduler.name], self._admitted[scheduler.name]
        still_ns = steps.record((scheduler.pid, gauges.get("steps"), num_running > 0), beat_ns)
        if num_running and still_ns >= self._limit_ns and self._have_no_stream(fronts, scheduler):
            what = f"turns its loop and runs no step, with {num_running} requests in rows"
            yield PossibleStall("queue", scheduler.name, steps.since_ns, what)
        has_room = bool(gauges.get("has_room"))
        still_ns = admitted.record((scheduler.pid, gauges.get("admitted"), has_room), beat_ns)
        if has_room and still_ns >= self._limit_ns:
            num_pages = int(gauges.get("pages_all", 0) - gauges.get("pages_in_use", 0))
            what = (
                f"lets none of {num_waiting} waiting requests in, with {num_running} rows taken, {num_pages} pages free"
            )
            yield PossibleStall("queue", scheduler.name, admitted.since_ns, what)

    def _have_no_stream(self, fronts: Iterable[ProcessStatus], scheduler: ProcessStatus) -> bool:
        """True if the frontends have reported, since the scheduler was overdue, that none of its streams waits for a
        token."""
        engine, since_ns = worker_number(scheduler.name), self._steps[scheduler.name].since_ns
        return all(
            front.beat_ns >= since_ns + self._limit_ns
            and not any(
                request.stage == "decode" and request.engine == engine
                for request in (front.frontend.quiet if front.frontend else ())
            )
            for front in fronts
        )

    def _find_streams(
        self, schedulers: Mapping[int, ProcessStatus], statuses: Iterable[ProcessStatus]
    ) -> Iterator[PossibleStall]:
        """A stream gets no token although the scheduler has ended its steps: its loop has turned since, and then the
        frontend has had the time to get their results."""
        known, self._suspects = self._suspects, {}
        for front in statuses:
            for request in front.frontend.quiet if front.frontend else ():
                key = request.uid, request.since_ns
                limit_ns = max(self._limit_ns, NUM_INTERVALS * request.interval_ns)
                scheduler = schedulers.get(request.engine)
                if scheduler is None or request.stage != "decode" or scheduler.beat_ns < request.since_ns + limit_ns:
                    continue
                turned_ns = self._suspects[key] = known.get(key, scheduler.beat_ns)
                if front.beat_ns >= turned_ns + DELIVERY_NS:
                    yield self._found_stream(request, scheduler)

    def _found_stream(self, request: QuietRequest, scheduler: ProcessStatus) -> PossibleStall:
        usual = f" (as a rule one comes every {request.interval_ns / 1e6:.0f} ms)" if request.interval_ns else ""
        if request.num_steps:
            process, what = scheduler.name, f"has run {request.num_steps} steps without a token for a stream{usual}"
        elif self._steps[scheduler.name].since_ns > request.since_ns + DELIVERY_NS:
            process, what = DETOKENIZER, f"has sent nothing of the scheduler's latest steps to a stream{usual}"
        else:
            process, what = scheduler.name, f"has run no step for a stream{usual}"
        return PossibleStall("stream", process, request.since_ns, what, (request,))


class _Edge:
    """One sender whose receiver lacks frames. Frames that are lost do not count: with the next one they are past."""

    def __init__(self) -> None:
        self.num_taken = 0
        """The number of the latest frame that has been received."""
        self.since_ns = 0
        self._receiver_pid = 0
        self._num_sent = 0

    def record(self, num_sent: int, sent_ns: int, receiver: ProcessStatus, num_taken: int) -> int:
        """Returns for how long the receiver has received nothing, by its beats, although more was sent; else 0."""
        if (receiver.pid, num_taken) != (self._receiver_pid, self.num_taken):
            self._receiver_pid, self.num_taken = receiver.pid, num_taken
            self.since_ns = max(receiver.beat_ns, sent_ns)
        if sent_ns < self.since_ns + DELIVERY_NS:
            self._num_sent = num_sent  # it may be that these were lost, or went to another process in its place
        return receiver.beat_ns - self.since_ns if num_sent > self._num_sent else 0


def _describe(found: PossibleStall, statuses: Iterable[ProcessStatus], now_ns: int) -> Stall:
    """Returns the report: the stalled process, since when, and the waiting requests."""
    requests = found.requests or tuple(
        request for status in statuses if status.frontend is not None for request in status.frontend.quiet
    )
    shown = ", ".join(_name(request, now_ns) for request in requests[:MAX_NAMED])
    more = f" and {len(requests) - MAX_NAMED} others or more" if len(requests) > MAX_NAMED else ""
    waiting = f"; waiting: {shown}{more}" if requests else ""
    text = f"{found.what}, for {(now_ns - found.since_ns) / 1e9:.1f} s{waiting}"
    return Stall(found.kind, found.process, found.since_ns, text)


def _name(request: QuietRequest, now_ns: int) -> str:
    age_s = (now_ns - request.since_ns) / 1e9
    return f"uid {request.uid} id {request.request_id} ({request.stage}, no token for {age_s:.1f} s)"
