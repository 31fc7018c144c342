"""All open requests by uid, from admission to the final reply, and the dispatch of replies to them."""

import logging
import time
from collections.abc import Callable, Iterable

from frontend.requests.generation import Generation
from messages.columns import runs_of, unpack_int32, unpack_int64
from messages.errors import ErrorInfo
from messages.ring.replies import PooledReply, PromptReply, StepReplies, UserReply
from messages.ring.uids import first_uid_of

RequestReplies = UserReply | StepReplies | PromptReply | PooledReply
OnEnd = Callable[[Generation, UserReply], None]
OnStep = Callable[[StepReplies, int, dict[int, int]], None]

log = logging.getLogger("sluice.frontend")


class Registry:
    """Holds a request until the one final reply of its current attempt has arrived.

    `on_end` is called with a request that has ended and left the registry, and the reply that ended it; the client may
    have got an earlier one. `on_step` is called with a step whose tokens
    have arrived, the arrival time, and the number of rows by the time of their previous token (0: none).
    """

    def __init__(self, uid_block: int, on_end: OnEnd, on_step: OnStep):
        self._open: dict[int, Generation] = {}
        self._first_uid = first_uid_of(uid_block)
        """Uids of this process are larger; those of frontends that started earlier are smaller."""
        self._next_uid = self._first_uid
        self._on_end = on_end
        self._on_step = on_step
        self._last_ns = 0
        """When the latest step arrived."""

    def __len__(self) -> int:
        return len(self._open)

    def next_uid(self) -> int:
        """Returns a uid that is unique in this run."""
        self._next_uid += 1
        return self._next_uid

    def add(self, generation: Generation) -> None:
        assert generation.uid not in self._open, f"uid {generation.uid} is open already"
        self._open[generation.uid] = generation

    def find(self, uid: int) -> Generation | None:
        return self._open.get(uid)

    def is_open(self, uid: int) -> bool:
        return uid in self._open

    def all_open(self) -> list[Generation]:
        return list(self._open.values())

    def all_sent(self) -> list[Generation]:
        """Returns the open requests that have been sent to the ring, oldest first."""
        return [generation for generation in self._open.values() if generation.is_sent]

    def receive(self, message: RequestReplies) -> None:
        """Dispatches the tokens and final replies in `message`; drops what belongs to no open attempt."""
        match message:
            case StepReplies():
                self._take_prefilled(message)
                self._take_rows(message)
                if message.logprobs:
                    self._take_logprobs(message)
                for final in message.finals:
                    self._take_final(final)
            case UserReply():
                self._take_final(message)
            case PromptReply() | PooledReply():
                generation = self._find_reading(message.uid, message.attempt)
                if generation is not None:
                    generation.add_prompt(message)

    def fail_all(self, error: ErrorInfo) -> None:
        """Ends every open request with `error`; later messages about them are dropped."""
        for generation in self.all_open():
            self.fail(generation, error)

    def fail(self, generation: Generation, error: ErrorInfo) -> None:
        """Ends an open request with `error`; later messages about it are dropped."""
        self.end(generation, UserReply(generation.uid, generation.attempt, "error", error=error))

    def end(self, generation: Generation, final: UserReply) -> None:
        """Ends an open request with `final`; later messages about it are dropped."""
        assert (final.uid, final.attempt) == (generation.uid, generation.attempt), f"{final} is of another request"
        self._take_final(final)

    def _find_reading(self, uid: int, attempt: int) -> Generation | None:
        """Returns the request of a current attempt, unless it has ended for its client."""
        generation = self._open.get(uid)
        if generation is None or generation.attempt != attempt or generation.final is not None:
            return None
        return generation

    def _take_prefilled(self, step: StepReplies) -> None:
        for row in step.prefilled:
            generation = self._find_reading(row.uid, row.attempt)
            if generation is not None:
                generation.prompt_usage = row.usage
                generation.timeline.begin_decoding(step.committed_ns, row.usage)

    def _take_rows(self, step: StepReplies) -> None:
        """Processes the newest rows, the last ones, first: a first token does not wait for all other streams."""
        uids = unpack_int64(step.uids)
        rows = zip(
            reversed(uids),
            reversed(unpack_int32(step.attempts)),
            reversed(list(runs_of(step.token_ids, step.num_tokens))),
            reversed(step.texts),
            strict=True,
        )
        find = self._open.get
        now_ns = self._last_ns = self._arrival_ns(step, uids)
        num_rows_after: dict[int, int] = {}  # most rows had their previous token in the same step
        for uid, attempt, token_ids, text in rows:
            generation = find(uid)
            if generation is not None and generation.attempt == attempt and generation.final is None:
                generation.add(token_ids, text)
                last_ns = generation.last_token_ns
                num_rows_after[last_ns] = num_rows_after.get(last_ns, 0) + 1
                generation.last_token_ns = now_ns
            else:
                log.debug("dropped a token of uid %d, attempt %d: not open", uid, attempt)
        if num_rows_after:
            self._on_step(step, now_ns, num_rows_after)

    def _arrival_ns(self, step: StepReplies, uids: Iterable[int]) -> int:
        """Returns the arrival time of a step's tokens: the end of the step if none of them is streamed."""
        is_streamed = any(row is not None and row.is_streamed for row in map(self._open.get, uids))
        return time.monotonic_ns() if is_streamed or not step.committed_ns else max(step.committed_ns, self._last_ns)

    def _take_logprobs(self, step: StepReplies) -> None:
        columns = unpack_int64(step.uids), unpack_int32(step.attempts), runs_of(step.token_ids, step.num_tokens)
        row_of_token = [(uid, attempt) for uid, attempt, run in zip(*columns, strict=True) for _ in run]
        for entry, logprobs in zip(unpack_int32(step.logprob_entries), step.logprobs, strict=True):
            uid, attempt = row_of_token[entry]
            generation = self._find_reading(uid, attempt)
            if generation is not None:
                generation.add_logprob(logprobs)

    def _take_final(self, final: UserReply) -> None:
        generation = self._open.get(final.uid)
        if generation is None or generation.attempt != final.attempt:
            is_of_predecessor = final.uid < self._first_uid
            is_replaced = final.attempt < generation.attempt if generation else final.attempt > 0
            level = logging.DEBUG if is_of_predecessor or is_replaced else logging.WARNING
            log.log(level, "dropped a final reply of uid %d, attempt %d: not open", final.uid, final.attempt)
            return
        del self._open[final.uid]
        generation.is_open = False
        if generation.final is None:
            generation.finish(final)
        self._on_end(generation, final)
