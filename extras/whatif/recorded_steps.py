"""Sizes and times of steps from the frames of a scheduler: its messages, its plans, and their results."""

from collections.abc import Sequence

from extras.whatif.cost_model import MeasuredStep, StepSize, with_chunks
from messages.columns import runs_of, unpack_int64
from messages.errors import UsageError
from messages.ring.replies import DetokenizeMsg
from messages.ring.requests import UserMsg
from messages.ring.timeline import ChunkRow, ScheduleReport


class StepReader:
    """Follows one scheduler process, frame by frame; `steps` are those whose begin and size are known.

    A step begins where the one before it ended or, if nothing was to be done, when the request that woke the scheduler
    was tokenized. It ends when its tokens are committed or, if it brought none, when the next step is planned.
    """

    def __init__(self) -> None:
        self.steps: list[MeasuredStep] = []
        self._num_tokens: dict[int, int] = {}
        """For each open request."""
        self._decoding: set[int] = set()
        self._chunks: Sequence[ChunkRow] = ()
        """For the running step."""
        self._begun_ns = 0
        """When the running step began; 0 if there is none or its begin is unknown."""
        self._idle_since_ns = 0

    def take(self, message: object) -> None:
        """Takes the next message that the process received or sent. Raises `UsageError` for steps that overlap."""
        match message:
            case UserMsg():
                if not self._num_tokens:
                    self._begun_ns = max(message.stamps.tokenized_ns, self._idle_since_ns)
                self._num_tokens[message.uid] = (len(message.input_ids) + len(message.output_ids)) // 4
            case ScheduleReport():
                if self._chunks:
                    self._record(with_chunks(0, 0, _spans(self._chunks)), message.planned_ns)
                self._chunks = message.chunks
                self._begun_ns = self._begun_ns or (message.planned_ns if message.chunks else 0)
            case DetokenizeMsg():
                if message.uids:
                    self._take_tokens(message)
                elif message.committed_ns and self._chunks:  # of prompts without output
                    self._record(with_chunks(0, 0, _spans(self._chunks)), message.committed_ns)
                    self._chunks = ()
                for row in message.finished:
                    self._num_tokens.pop(row.uid, None)
                    self._decoding.discard(row.uid)
                if not self._num_tokens:
                    self._begun_ns, self._idle_since_ns = 0, message.committed_ns
            case _:
                pass

    def _take_tokens(self, message: DetokenizeMsg) -> None:
        uids, in_prefill = unpack_int64(message.uids), {chunk.uid for chunk in self._chunks}
        decoded = [uid for uid in uids if uid not in in_prefill]
        if any(uid in self._num_tokens and uid not in self._decoding for uid in decoded):
            raise UsageError(
                "the recorded steps overlap, so frames do not show which is which: measure them with "
                "`launch.py calibrate`, and give --steps"
            )
        if not all(uid in self._num_tokens for uid in uids):
            self._begun_ns = 0  # requests from before the first frame
        keys = sum(self._num_tokens.get(uid, 0) for uid in decoded)
        num_rows = len(decoded) + message.num_draft_tokens
        self._record(with_chunks(num_rows, keys, _spans(self._chunks)), message.committed_ns)
        self._chunks = ()
        self._decoding.update(uids)
        for uid, token_ids in zip(uids, runs_of(message.token_ids, message.num_tokens), strict=True):
            if uid in self._num_tokens:
                self._num_tokens[uid] += len(token_ids)

    def _record(self, size: StepSize, end_ns: int) -> None:
        if self._begun_ns:
            self.steps.append(MeasuredStep(size, (end_ns - self._begun_ns) / 1e9))
        self._begun_ns = end_ns


def _spans(chunks: Sequence[ChunkRow]) -> list[tuple[int, int]]:
    return [(chunk.start, chunk.end - chunk.start) for chunk in chunks]
