"""The timelines of this frontend's requests: open ones, and the latest ended ones."""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

from frontend.requests.generation import Generation
from frontend.requests.step_log import MAX_POINTS, StepLog
from frontend.requests.timeline import ChunkSpan, Outcome, Span, Stage, Timeline, WaitReport
from messages.ring.replies import StepReplies
from messages.ring.timeline import (
    ChunkRow,
    DelayedRow,
    PausedRow,
    PreemptedRow,
    ScheduleReport,
    Tokenized,
    TokenizedRow,
    WaitingRow,
)

NUM_ENDED = 1000

R = TypeVar("R", TokenizedRow, ChunkRow, WaitingRow, DelayedRow, PreemptedRow, PausedRow)

log = logging.getLogger("sluice.frontend")


@dataclass(eq=False)
class Timelines:
    """Keeps a request from its admission until its response is over, then as one of the latest `NUM_ENDED`.

    Requests that took `slow_request_s` or longer are logged. `find_open` returns the request with a uid, if it awaits
    its final reply. `on_end` is called with each timeline that has ended.
    """

    _find_open: Callable[[int], Generation | None]
    _slow_request_s: float | None = None
    on_end: Callable[[Timeline], None] = lambda timeline: None
    _live: dict[int, Generation] = field(default_factory=dict[int, Generation])
    _ended: deque[Timeline] = field(default_factory=lambda: deque(maxlen=NUM_ENDED))
    steps: defaultdict[int, StepLog] = field(default_factory=lambda: defaultdict(StepLog))
    """The step log of each engine."""
    last_report_ns: int = 0
    """Time of the scheduler's latest message, received through the detokenizer."""

    @property
    def num_live(self) -> int:
        return len(self._live)

    def live(self) -> list[Generation]:
        """Returns the requests whose responses are not over, oldest first."""
        return list(self._live.values())

    def ended(self) -> Iterator[Timeline]:
        """Yields the timelines of ended requests, latest first."""
        return reversed(self._ended)

    def open(self, generation: Generation, path: str) -> None:
        """Adds an admitted request; `path` is that of its endpoint."""
        generation.timeline.path = path
        self._live[generation.uid] = generation

    def close(self, generation: Generation) -> None:
        """Closes the timeline: the response is over, or not needed, and the final reply has arrived. Idempotent."""
        if self._live.pop(generation.uid, None) is None:
            return
        final, timeline = generation.ended, generation.timeline
        timeline.end_ns = time.monotonic_ns()
        timeline.outcome = Outcome(final.finish_reason, len(generation.output_ids), self.step_ends(timeline))
        self._ended.append(timeline)
        self.on_end(timeline)
        total_s = (timeline.end_ns - timeline.received_ns) / 1e9
        if self._slow_request_s is not None and total_s >= self._slow_request_s:
            log.warning("slow request: %s", describe(timeline, timeline.end_ns), extra=generation.log_extra)

    def record_step(self, step: StepReplies, now_ns: int) -> None:
        """Records a step whose tokens have arrived."""
        self.last_report_ns = now_ns
        if step.committed_ns:
            self.steps[step.engine].add(step.committed_ns)

    def record_tokenized(self, message: Tokenized) -> None:
        """Records that the tokenizer passed on prompts."""
        for row, timeline in self._find(message.rows):
            timeline.prompt_tokens = row.num_tokens
            timeline.mark_once(row.begun_ns, "tokenize")
            timeline.mark_once(row.tokenized_ns, "scheduler_inbox")

    def record_schedule(self, report: ScheduleReport) -> None:
        """Records the scheduler's plan of a step."""
        self.last_report_ns, planned_ns = time.monotonic_ns(), report.planned_ns
        for _, timeline in self._find(report.preempted):
            timeline.mark(planned_ns, "preempted")
        for paused, timeline in self._find(report.paused):
            if paused.is_paused != (timeline.stage == "preempted"):
                timeline.mark(planned_ns, "preempted" if paused.is_paused else "decode")
            timeline.wait_report = WaitReport(planned_ns, report.facts, paused) if paused.is_paused else None
        for waiting, timeline in self._find(report.waiting):
            timeline.record_wait(WaitReport(planned_ns, report.facts, waiting), waiting)
        for chunk, timeline in self._find(report.chunks):
            timeline.num_to_compute = chunk.num_tokens
            timeline.record_chunk(ChunkSpan(planned_ns, chunk.start, chunk.end), chunk.queued_ns)
        for delayed, timeline in self._find(report.delayed):
            timeline.wait_report = WaitReport(planned_ns, report.facts, delayed)

    def step_ends(self, timeline: Timeline) -> tuple[int, ...]:
        """Returns the end times of the request's decode steps, as far as they are kept."""
        if timeline.outcome is not None:
            return timeline.outcome.step_ends_ns
        decoding, steps = timeline.decoding(time.monotonic_ns()), self.steps[timeline.engine]
        if len(decoding) == 1:  # the usual case
            return steps.between(*decoding[0])
        max_points = max(1, MAX_POINTS // max(1, len(decoding)))
        return tuple(chain.from_iterable(steps.between(*span, max_points) for span in decoding))

    def _find(self, rows: Iterable[R]) -> Iterator[tuple[R, Timeline]]:
        """Yields the rows about current attempts, with their timelines."""
        for row in rows:
            generation = self._find_open(row.uid)
            if generation is not None and generation.attempt == row.attempt:
                yield row, generation.timeline


def describe(timeline: Timeline, now_ns: int) -> str:
    """Returns a timeline as one line, `uid=7 id=… total=812.3 ms accept=0.4 …`, with repeated stages summed."""
    total_ms = (now_ns - timeline.received_ns) / 1e6
    stages = " ".join(f"{stage}={ms:.1f}" for stage, ms in sum_stages(timeline.spans(now_ns)).items())
    reason = timeline.outcome.finish_reason if timeline.outcome is not None else "open"
    return (
        f"uid={timeline.uid} id={timeline.request_id} prompt={timeline.prompt_tokens} cached={timeline.cached_tokens} "
        f"finish={reason} attempts={timeline.attempt + 1} total={total_ms:.1f} ms {stages}"
    )


def sum_stages(spans: list[Span]) -> dict[Stage, float]:
    """Returns the milliseconds per stage, in order of first occurrence."""
    sums_ms: dict[Stage, float] = {}
    for span in spans:
        sums_ms[span.stage] = sums_ms.get(span.stage, 0.0) + (span.end_ns - span.begin_ns) / 1e6
    return sums_ms
