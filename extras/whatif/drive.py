"""The scheduler's loop for arrivals on any clock: that of `scheduler_proc/process.py`, with no process around it."""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from extras.whatif.traces import Arrival
from messages.columns import INT64, pack_int32
from messages.config.server import Config
from messages.ring.replies import DetokenizeMsg, ToDetokenizer
from messages.ring.requests import AbortMsg, SamplingParams, Stamps, UserMsg
from messages.ring.timeline import ScheduleReport
from scheduler_proc.deciding_half import make_scheduler
from scheduler_proc.step_times import StepTimes
from scheduler_proc.stepper import Runner, Stepper

Array = NDArray[np.float64]


class SkippingClock:
    """The time of `source` without idle periods: waiting takes no time."""

    def __init__(self, source: Callable[[], float] = time.monotonic):
        self._source = source
        self._offset_s = -source()
        self.cpu_seconds: Callable[[], float] = self
        """The CPU seconds of steps, by which draft lengths are chosen; by default this time."""

    def __call__(self) -> float:
        return self._source() + self._offset_s

    def wait_until(self, at_s: float) -> None:
        """Lets the time pass until then, if it has not."""
        if self() < at_s:
            self._offset_s = at_s - self._source()


@dataclass(frozen=True)
class ServedRequests:
    """The results of the arrivals by index, in seconds since the start.

    `gaps_s` are the times between the tokens of a request, of which those of one step come together. `waits` counts
    requests that had to wait for a row, by what they waited for; `gauges` are the scheduler's.
    """

    arrived_s: Array
    first_s: Array
    last_s: Array
    gaps_s: Array
    waits: Counter[str]
    gauges: dict[str, float]

    @classmethod
    def joined(cls, parts: Sequence["ServedRequests"]) -> "ServedRequests":
        """Returns the combined results of several engines; counters are summed."""
        times_s = [(part.arrived_s, part.first_s, part.last_s, part.gaps_s) for part in parts]
        arrived_s, first_s, last_s, gaps_s = map(np.concatenate, zip(*times_s, strict=True))
        waits = sum((part.waits for part in parts), Counter[str]())
        gauges = {name: sum(part.gauges[name] for part in parts) for name in parts[0].gauges}
        return cls(arrived_s, first_s, last_s, gaps_s, waits, gauges)


def serve(
    arrivals: Sequence[Arrival],
    config: Config,
    runner: Runner,
    clock: SkippingClock,
    times: StepTimes,
    until_s: float = math.inf,
    draw_jitter_s: Callable[[], float] = lambda: 0.0,
) -> ServedRequests:
    """Serves the arrivals, which are in order of time, by a new scheduler on `runner`.

    At `until_s` the running requests are aborted, and no more arrive. The tokens of a step become visible after the
    jitter drawn for it, but not before those of an earlier step.
    """
    scheduler = make_scheduler(config, runner)
    stepper = Stepper(scheduler, runner, times, clock, clock.cpu_seconds)
    inbox = _Inbox([arrival.at_s for arrival in arrivals], draw_jitter_s)
    num_received, num_arrivals = 0, len(arrivals)
    while True:
        now_s = clock()
        if now_s >= until_s:
            for uid in range(num_received):
                scheduler.receive(AbortMsg(uid, 0))
            num_arrivals = num_received
        while num_received < num_arrivals and arrivals[num_received].at_s <= now_s:
            scheduler.receive(_user_msg(num_received, arrivals[num_received]))
            num_received += 1
        batch = scheduler.schedule()
        if batch is not None or stepper.has_step:
            stepper.step(batch, now_s)
        elif num_received < num_arrivals:
            clock.wait_until(arrivals[num_received].at_s)
        elif scheduler.is_idle:
            break
        else:
            clock.wait_until(math.inf)  # for pages from a lower tier
        inbox.take(scheduler.pop_replies(), clock())
    return inbox.served(scheduler.gauges())


def _user_msg(uid: int, arrival: Arrival) -> UserMsg:
    params = SamplingParams(
        arrival.num_output,
        temperature=0.0,
        ignore_eos=True,
        cache_salt=arrival.cache_salt,
        priority=arrival.priority,
    )
    at_ns = 1 + round(arrival.at_s * 1e9)
    stamps = Stamps(received_ns=at_ns, tokenized_ns=at_ns)
    prompt_ids = pack_int32(arrival.prompt_ids)
    return UserMsg(uid, 0, prompt_ids, params, stamps, client=arrival.client, share=arrival.share)


class _Inbox:
    """The times at which each request got its tokens."""

    def __init__(self, arrived_s: Sequence[float], draw_jitter_s: Callable[[], float]) -> None:
        self._draw_jitter_s = draw_jitter_s
        self._seen_s = 0.0
        self._arrived_s = np.array(arrived_s)
        self._first_s = np.full(len(arrived_s), np.nan)
        self._last_s = np.full(len(arrived_s), np.nan)
        self._gaps_s: list[Array] = []
        self._waits: dict[int, str] = {}

    def take(self, replies: Sequence[ToDetokenizer], now_s: float) -> None:
        for reply in replies:
            match reply:
                case DetokenizeMsg():
                    self._seen_s = max(self._seen_s, now_s + self._draw_jitter_s())
                    self._record_tokens(np.frombuffer(reply.uids, INT64), self._seen_s)
                case ScheduleReport() if reply.facts.waits_for is not None:
                    for row in reply.waiting:
                        self._waits.setdefault(row.uid, reply.facts.waits_for)
                case _:
                    pass

    def served(self, gauges: dict[str, float]) -> ServedRequests:
        gaps_s = np.concatenate([*self._gaps_s, np.zeros(0)])
        return ServedRequests(
            self._arrived_s, self._first_s, self._last_s, gaps_s, Counter(self._waits.values()), gauges
        )

    def _record_tokens(self, uids: NDArray[np.int64], now_s: float) -> None:
        gaps_s = now_s - self._last_s[uids]
        is_first = np.isnan(gaps_s)
        if is_first.any():
            self._first_s[uids[is_first]] = now_s
            gaps_s = gaps_s[~is_first]
        self._last_s[uids] = now_s
        self._gaps_s.append(gaps_s)
