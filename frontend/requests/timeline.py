"""The timeline of one request: when each stage of its life began, told by whoever saw it, on the clock of the host."""

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
    "prefill",
    "decode",
    "preempted",
    "restart",
    "detokenize",
    "deliver",
    "send",
]
"""In the order in which a request passes them; `docs/operate/timelines.md` describes each."""

WAITING_STAGES = frozenset[Stage]({"hold", "tokenizer_queue", "scheduler_inbox", "queue", "preempted", "restart"})
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
    """Tokens `start` to `end` (exclusive) of a prompt, planned at `planned_ns`; it may stand for several chunks."""

    planned_ns: int
    start: int
    end: int


class Told(NamedTuple):
    """What the scheduler said last of a request that it did not work on, as of `planned_ns`."""

    planned_ns: int
    facts: QueueFacts
    row: WaitingRow | DelayedRow | PausedRow


class Outcome(NamedTuple):
    """How a request ended, and what must be known of it when it is gone."""

    finish_reason: FinishReason
    num_output_tokens: int
    step_ends_ns: tuple[int, ...]
    """When steps of its decoding ended: of long ones, every n-th step."""


class Timeline:
    """Marks, each of which begins a stage that lasts until the next one: so the stages sum to the whole time.

    They are told by several processes and may come in another order; within an attempt they are kept in that of time.
    There are at most about `MAX_MARKS`: of a request that is preempted again and again the later turns are not told.
    """

    def __init__(self, uid: int, request_id: str, index: int, received_ns: int, priority: int):
        self.uid = uid
        self.request_id = request_id
        self.index = index
        """Its place among the choices of its HTTP request."""
        self.priority = priority
        self.path = ""
        """Of its endpoint."""
        self.attempt = 0
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.num_to_compute = 0
        """Tokens that are to be computed or found in the cache before the first (or next) one is sampled."""
        self.chunks: list[ChunkSpan] = []
        self.told: Told | None = None
        self.is_quarantined = False
        """It may have killed the scheduler, and others like it run before it."""
        self.outcome: Outcome | None = None
        """`None` until its response is over."""
        self.end_ns = 0
        self.engine = 1
        """The number of the scheduler that has it, or had it last."""
        self._marks: list[tuple[int, Stage]] = [(received_ns, "accept")]
        self._attempt_start = 0
        """Where the marks of the present attempt begin."""

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
        """Tells whether its latest stage may not be known, because there are too many marks."""
        return len(self._marks) >= MAX_MARKS

    def mark(self, begin_ns: int, stage: Stage) -> None:
        """`stage` began at `begin_ns`."""
        marks = self._marks
        if self.is_full and stage not in LAST_STAGES:
            return
        if begin_ns >= marks[-1][0]:
            marks.append((begin_ns, stage))
        else:
            insort(marks, (begin_ns, stage), lo=self._attempt_start, key=_time_of)

    def mark_once(self, begin_ns: int, stage: Stage) -> None:
        """As `mark`, unless the present attempt has had this stage or the time is not known."""
        if begin_ns and not self.has_had(stage):
            self.mark(begin_ns, stage)

    def has_had(self, stage: Stage) -> bool:
        """Tells whether the present attempt is in `stage` or has been."""
        for _, had in self._marks[self._attempt_start :]:  # noqa: SIM110 (a third of the time of `any`)
            if had == stage:
                return True
        return False

    def send(self, now_ns: int) -> None:
        """The request has left for a tokenizer."""
        self.is_quarantined = False
        self.mark(now_ns, "tokenizer_queue")

    def interrupt(self, last_token_ns: int) -> None:
        """The present attempt is lost, at the latest sign of it; the next one begins with `send`."""
        if self.stage != "restart":
            told_ns = self.told.planned_ns if self.told is not None else 0
            begin_ns = max(self.stage_begin_ns, last_token_ns, told_ns)
            self.attempt += 1
            self._attempt_start = len(self._marks)
            self.told = None
            self.mark(begin_ns, "restart")

    def note_chunk(self, chunk: ChunkSpan, queued_ns: int) -> None:
        """The scheduler works on its prompt."""
        self.mark_once(queued_ns, "queue")
        if self.stage != "prefill":
            self.mark(chunk.planned_ns, "prefill")
        self.told = None
        chunks = self.chunks
        if chunks and chunks[-1].start == chunk.start:
            chunks.pop()  # planned again: a step has failed
        if len(chunks) >= MAX_CHUNKS:
            chunks[:] = [_join(*chunks[place : place + 2]) for place in range(0, len(chunks), 2)]
        chunks.append(chunk)

    def begin_decoding(self, begin_ns: int, usage: Usage) -> None:
        """The prompt is computed, and a token of a step that ended at `begin_ns` (0: unknown) has come."""
        self.prompt_tokens, self.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        if begin_ns:
            self.mark(begin_ns, "decode")

    def finish(self, final: UserReply, now_ns: int) -> None:
        """Its final reply is here: fills in what was not heard, from the stamps that came with it."""
        had = {stage for _, stage in self._marks[self._attempt_start :]}
        for begin_ns, stage in _stages_of(final.stamps):
            if begin_ns and stage not in had:
                self.mark(begin_ns, stage)
        self.mark(now_ns, "send")
        if final.usage.prompt_tokens:
            self.prompt_tokens, self.cached_tokens = final.usage.prompt_tokens, final.usage.cached_tokens
        self.told = None

    def decoding(self, now_ns: int) -> list[tuple[int, int]]:
        """Returns from when to when it decoded, the last time perhaps up to now."""
        marks, last = self._marks, len(self._marks) - 1
        return [
            (begin_ns, marks[place + 1][0] if place < last else now_ns)
            for place, (begin_ns, stage) in enumerate(marks)
            if stage == "decode"
        ]

    def spans(self, now_ns: int) -> list[Span]:
        """Returns the stages so far, without a gap, from the arrival to the end or to `now_ns`."""
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
    """Returns the stages that begin at a stamp; one that the tokenizer has refused comes straight from there."""
    return (
        (stamps.tokenize_begun_ns, "tokenize"),
        (stamps.tokenized_ns, "scheduler_inbox" if stamps.queued_ns else "deliver"),
        (stamps.queued_ns, "queue"),
        (stamps.first_scheduled_ns, "prefill"),
        (stamps.first_token_ns, "decode"),
        (stamps.finished_ns, "detokenize"),
        (stamps.detokenized_ns, "deliver"),
    )
