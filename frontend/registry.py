"""All open requests by uid, from admission to the final reply, and the matching of replies to them."""

import logging
from collections.abc import Callable

from frontend.generation import Generation
from messages.columns import unpack_int32, unpack_int64
from messages.errors import ErrorInfo
from messages.replies import StepReplies, ToFrontend, UserReply

UIDS_PER_INCARNATION = 2**32
"""Uids stay below 2**53, so that every JSON reader keeps them exact."""

log = logging.getLogger("sluice.frontend")


class Registry:
    """Holds a request until exactly one final reply of its current attempt has arrived.

    `on_end` is called when a request has ended and left the registry.
    """

    def __init__(self, incarnation: int, on_end: Callable[[], None]):
        self._open: dict[int, Generation] = {}
        self.has_predecessor = incarnation > 1
        self.first_uid = incarnation * UIDS_PER_INCARNATION
        """Uids of this incarnation are larger, those of its predecessors smaller."""
        self._next_uid = self.first_uid
        self._on_end = on_end

    def __len__(self) -> int:
        return len(self._open)

    def next_uid(self) -> int:
        """Returns a uid that no request of this run has had."""
        self._next_uid += 1
        return self._next_uid

    def add(self, generation: Generation) -> None:
        assert generation.uid not in self._open, f"uid {generation.uid} is open already"
        self._open[generation.uid] = generation

    def find(self, uid: int) -> Generation | None:
        return self._open.get(uid)

    def all_open(self) -> list[Generation]:
        return list(self._open.values())

    def take(self, message: ToFrontend) -> None:
        """Gives the tokens and ends in `message` to their requests; what belongs to no open attempt is dropped."""
        match message:
            case StepReplies():
                self._take_rows(message)
                for final in message.finals:
                    self._take_final(final)
            case UserReply():
                self._take_final(message)

    def fail_all(self, error: ErrorInfo) -> None:
        """Ends every open request with `error`, whatever the ring may still send."""
        for generation in self.all_open():
            self.fail(generation, error)

    def fail(self, generation: Generation, error: ErrorInfo) -> None:
        """Ends an open request with `error`, whatever the ring may still send."""
        self._take_final(UserReply(generation.uid, generation.attempt, "error", error=error))

    def _take_rows(self, step: StepReplies) -> None:
        rows = zip(
            unpack_int64(step.uids),
            unpack_int32(step.attempts),
            unpack_int32(step.token_ids),
            step.texts,
            strict=True,
        )
        find = self._open.get
        for uid, attempt, token_id, text in rows:
            generation = find(uid)
            if generation is not None and generation.attempt == attempt:
                generation.add(token_id, text)
            else:
                log.debug("dropped a token of uid %d, attempt %d: not open", uid, attempt)

    def _take_final(self, final: UserReply) -> None:
        generation = self._open.get(final.uid)
        if generation is None or generation.attempt != final.attempt:
            is_of_predecessor = final.uid < self.first_uid
            is_replaced = final.attempt < generation.attempt if generation else final.attempt > 0
            level = logging.DEBUG if is_of_predecessor or is_replaced else logging.WARNING
            log.log(level, "dropped a final reply of uid %d, attempt %d: not open", final.uid, final.attempt)
            return
        del self._open[final.uid]
        generation.finish(final)
        self._on_end()
