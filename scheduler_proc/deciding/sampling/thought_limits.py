"""Limits the tokens of reasoning (a thought) at the beginning of an output, and forces the tokens that close it."""

from array import array
from collections.abc import Sequence
from typing import Protocol

from messages.columns import INT32, unpack_int32
from messages.ring.requests import ThoughtLimit


class Matcher(Protocol):
    """The state of a compiled grammar in an output, such as `llguidance.LLMatcher`."""

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int, /) -> None:
        """Writes the bitmask to this address. Raises `ValueError` unless the size matches the tokenizer."""

    def consume_token(self, sampled_token: int, /) -> bool: ...
    def try_consume_tokens(self, tokens: list[int], /) -> int: ...
    def rollback(self, num_tokens: int, /) -> bool: ...
    def is_accepting(self) -> bool: ...
    def is_stopped(self) -> bool: ...
    def get_error(self) -> str: ...


class FollowedThought:
    """A thought with a limit, after the tokens that its request has.

    The state depends only on the tokens of the output, so a continuation has the same limit. A token without text, such
    as a special token, counts as part of the thought. `is_over`: it has ended, or the output has none.
    """

    __slots__ = ("_end_ids", "_limit", "_matcher", "_num_inside", "is_over")

    def __init__(self, limit: ThoughtLimit, matcher: Matcher, output_ids: "array[int]"):
        self._limit, self._matcher = limit, matcher
        self._end_ids = unpack_int32(limit.end_ids)
        self._num_inside = -limit.num_begin
        """The number of tokens in the thought; if negative, the number that its opening mark still lacks."""
        self.is_over = False
        for token_id in output_ids:
            self.accept(token_id)

    @property
    def is_near_end(self) -> bool:
        """True if the next token may determine the token that must follow it."""
        return not self.is_over and self._num_inside + 1 >= self._limit.num_tokens

    def accept(self, token_id: int) -> None:
        if self.is_over:
            return
        is_accepted = self._matcher.try_consume_tokens([token_id]) == 1
        self.is_over = self._matcher.is_accepting() or (not is_accepted and self._num_inside < 0)
        self._num_inside += 1

    def forced_ids(self, draft_ids: Sequence[int] = ()) -> "array[int]":
        """Returns the int32 ids that must follow these draft tokens, empty if the thought need not end yet."""
        num_over = self._num_inside + len(draft_ids) - self._limit.num_tokens
        if self.is_over or num_over < 0 or self._ends_within(draft_ids):
            return array(INT32)
        return self._end_ids[num_over:]

    def _ends_within(self, draft_ids: Sequence[int]) -> bool:
        """True if the thought is over after these draft tokens."""
        matcher, num_consumed, is_over = self._matcher, 0, False
        for index, token_id in enumerate(draft_ids, self._num_inside):
            is_accepted = matcher.try_consume_tokens([token_id]) == 1
            num_consumed += is_accepted
            is_over = matcher.is_accepting() or (not is_accepted and index < 0)
            if is_over:
                break
        if num_consumed:
            matcher.rollback(num_consumed)
        return is_over
