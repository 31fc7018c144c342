"""The timeline of one request: when each stage began, as reported by all processes on the host's clock."""

from bisect import insort
from operator import itemgetter
from typing import Literal, NamedTuple

from messages.ring.replies import FinishReason, Usage, UserReply
from messages.ring.requests import Stamps
from messages.ring.timeline import DelayedRow, PausedRow, QueueFacts, WaitingRow

Stage = Literal[
    "accept",
    "hold",
    "tokenizer_queue",
    "tokenize",
    "scheduler_inbox",
    "queue",
    "encode",
    "prefill",
    "decode",
    "preempted",
    "restart",
    "detokenize",
    "deliver",
    "send",
]
"""In the order in which a request passes them; `docs/operate/timelines.md` describes each."""

WAITING_STAGES = frozenset[Stage](
    {"hold", "tokenizer_queue", "scheduler_inbox", "queue", "encode", "preempted", "restart"}
)
LAST_STAGES = frozenset[Stage]({"detokenize", "deliver", "send"})

MAX_MARKS = 256
MAX_CHUNKS = 64

_time_of = itemgetter(0)


class Span(NamedTuple):
    """One stage of one attempt, by `time.monotonic_ns()`."""

    stage: Stage
    attempt: int
    begin_ns: int
    end_ns: int


class ChunkSpan(NamedTuple):
    """Tokens `start` to `end` (exclusive) of a prompt, planned at `planned_ns`; may combine several chunks."""

    planned_ns: int
    start: int
    end: int


class WaitReport(NamedTuple):
    """The scheduler's latest report on a request that it did not process, as of `planned_ns`."""

    planned_ns: int
    facts: QueueFacts
    row: WaitingRow | DelayedRow | PausedRow


class Outcome(NamedTuple):
    """How a request ended, and the data that remains available after it."""

    finish_reason: FinishReason
    num_output_tokens: int
    step_ends_ns: tuple[int, ...]
    """When its decode steps ended; every n-th step for long outputs."""


class Timeline:
    """A list of marks. Each begins a stage that lasts until the next mark, so the stages add up to the total time.

    Several processes report marks, possibly out of order; within an attempt they are sorted by time. There are at most
    about `MAX_MARKS`: for a request that is preempted very often, later preemptions are not recorded.
    """

    def __init__(self, uid: int, request_id: str, index: int, received_ns: int, priority: int):
        self.uid = uid
        self.request_id = request_id
        self.index = index
        """The position among the choices of the HTTP request."""
        self.priority = priority
        self.key = ""
        """The name of its client's key."""
        self.path = ""
        """The path of its endpoint."""
        self.attempt = 0
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.num_to_compute = 0
        """Tokens to compute or find in the cache before the first (or next) token is sampled."""
        self.chunks: list[ChunkSpan] = []
        self.wait_report: WaitReport | None = None
        self.is_quarantined = False
        """It may have killed the scheduler and waits for other suspects to run first."""
        self.outcome: Outcome | None = None
        """`None` until the response is over."""
        self.end_ns = 0
        self.engine = 1
        """The number of the scheduler that has or last had the request."""
        self._marks: list[tuple[int, Stage]] = [(received_ns, "accept")]
        self._attempt_start = 0
        """Index of the first mark of the current attempt."""

    @property
    def received_ns(self) -> int:
        return self._marks[0][0]

    @property
    def stage(self) -> Stage:
        return self._marks[-1][1]

    @property
    def stage_begin_ns(self) -> int:
        return self._marks[-1][0]

    @property
    def is_full(self) -> bool:
        """True if there are too many marks, so the latest stage may be unknown."""
        return len(self._marks) >= MAX_MARKS

    def mark(self, begin_ns: int, stage: Stage) -> None:
        """Records that `stage` began at `begin_ns`; after the last stage, nothing is recorded."""
        marks = self._marks
        if self.stage == "send" or (self.is_full and stage not in LAST_STAGES):
            return
        if begin_ns >= marks[-1][0]:
            marks.append((begin_ns, stage))
        else:
            insort(marks, (begin_ns, stage), lo=self._attempt_start, key=_time_of)

    def mark_once(self, begin_ns: int, stage: Stage) -> None:
        """Same as `mark`, unless the current attempt already had this stage or the time is unknown."""
        if begin_ns and not self.has_had(stage):
            self.mark(begin_ns, stage)

    def has_had(self, stage: Stage) -> bool:
        """True if the current attempt is or was in `stage`."""
        for _, had in self._marks[self._attempt_start :]:  # noqa: SIM110 (a third of the time of `any`)
            if had == stage:
                return True
        return False

    def send(self, now_ns: int) -> None:
        """Records that the request was sent to a tokenizer."""
        self.is_quarantined = False
        self.mark(now_ns, "tokenizer_queue")

    def interrupt(self, last_token_ns: int) -> None:
        """Ends the current attempt, which is lost, at its latest known time; the next one begins with `send`."""
        if self.stage not in ("restart", "send"):
            reported_ns = self.wait_report.planned_ns if self.wait_report is not None else 0
            begin_ns = max(self.stage_begin_ns, last_token_ns, reported_ns)
            self.attempt += 1
            self._attempt_start = len(self._marks)
            self.wait_report = None
            self.mark(begin_ns, "restart")

    def record_wait(self, report: WaitReport, row: WaitingRow) -> None:
        """Records that it waits in the queue, or for the encodings of its images."""
        self.wait_report = report
        self.mark_once(row.queued_ns, "queue")
        stage: Stage = "encode" if row.lacks == "encoding" else "queue"
        if self.stage in ("queue", "encode") and self.stage != stage:
            self.mark(report.planned_ns, stage)

    def record_chunk(self, chunk: ChunkSpan, queued_ns: int) -> None:
        """Records that the scheduler planned a part of the prompt."""
        self.mark_once(queued_ns, "queue")
        if self.stage != "prefill":
            self.mark(chunk.planned_ns, "prefill")
        self.wait_report = None
        chunks = self.chunks
        if chunks and chunks[-1].start == chunk.start:
            chunks.pop()  # planned again: a step failed
        if len(chunks) >= MAX_CHUNKS:
            chunks[:] = [_join(*chunks[place : place + 2]) for place in range(0, len(chunks), 2)]
        chunks.append(chunk)

    def begin_decoding(self, begin_ns: int, usage: Usage) -> None:
        """Records the first token, from a step that ended at `begin_ns` (0: unknown)."""
        self.prompt_tokens, self.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        if begin_ns:
            self.mark(begin_ns, "decode")

    def finish(self, final: UserReply, now_ns: int) -> None:
        """Records the final reply, and fills in missing stages from its stamps."""
        had = {stage for _, stage in self._marks[self._attempt_start :]}
        for begin_ns, stage in _stages_of(final.stamps):
            if begin_ns and stage not in had:
                self.mark(begin_ns, stage)
        self.mark(now_ns, "send")
        if final.usage.prompt_tokens:
            self.prompt_tokens, self.cached_tokens = final.usage.prompt_tokens, final.usage.cached_tokens
        self.wait_report = None

    def decoding(self, now_ns: int) -> list[tuple[int, int]]:
        """Returns the periods in which it decoded; the last one may extend to `now_ns`."""
        marks, last = self._marks, len(self._marks) - 1
        return [
            (begin_ns, marks[place + 1][0] if place < last else now_ns)
            for place, (begin_ns, stage) in enumerate(marks)
            if stage == "decode"
        ]

    def spans(self, now_ns: int) -> list[Span]:
        """Returns the contiguous stages so far, from arrival to the end or to `now_ns`."""
        marks = self._marks
        ends = [begin_ns for begin_ns, _ in marks[1:]] + [self.end_ns or max(now_ns, marks[-1][0])]
        spans: list[Span] = []
        attempt = 0
        for (begin_ns, stage), end_ns in zip(marks, ends, strict=True):
            attempt += stage == "restart"
            spans.append(Span(stage, attempt, begin_ns, end_ns))
        return spans


def _join(first: ChunkSpan, last: ChunkSpan | None = None) -> ChunkSpan:
    return first if last is None else ChunkSpan(first.planned_ns, first.start, last.end)


def _stages_of(stamps: Stamps) -> tuple[tuple[int, Stage], ...]:
    """Returns the stages that begin at a stamp. A request that the tokenizer refused comes directly from there."""
    return (
        (stamps.tokenize_begun_ns, "tokenize"),
        (stamps.tokenized_ns, "scheduler_inbox" if stamps.queued_ns else "deliver"),
        (stamps.queued_ns, "queue"),
        (stamps.first_scheduled_ns, "prefill"),
        (stamps.first_token_ns, "decode"),
        (stamps.finished_ns, "detokenize"),
        (stamps.detokenized_ns, "deliver"),
    )
