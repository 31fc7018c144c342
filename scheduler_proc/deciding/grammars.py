"""What a request's grammar allows next, and when it is complete."""

import time
from array import array
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile
from typing import Protocol

from messages.columns import INT32
from messages.errors import ErrorInfo, bad_request
from messages.requests import SamplingParams
from scheduler_proc.deciding.endings import Ending, end_tokens_of
from scheduler_proc.deciding.thought_limits import FollowedThought

COMPLETE = Ending("stop")
"""Nothing more may come, not even white space."""

SLOW_MASK_S, MAX_SLOW_S = 0.005, 0.5
"""Bitmasks that take longer than the one may together take as long as the other: all rows wait for them. It is the
thread's own time, so that a busy machine is nobody's fault."""


class Matcher(Protocol):
    """A compiled grammar somewhere in an output, as `llguidance.LLMatcher` is one."""

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int, /) -> None:
        """Writes the bitmask to this address. Raises `ValueError` unless the size is that of the tokenizer's."""
        ...

    def compute_ff_tokens(self) -> list[int]: ...
    def consume_token(self, sampled_token: int, /) -> bool: ...
    def try_consume_tokens(self, tokens: list[int], /) -> int: ...
    def rollback(self, num_tokens: int, /) -> bool: ...
    def is_accepting(self) -> bool: ...
    def is_stopped(self) -> bool: ...
    def get_error(self) -> str: ...


class MatcherTokenizer(Protocol):
    """What matchers are made for, as `llguidance.LLTokenizer` is one."""

    @property
    def vocab_size(self) -> int:
        """Tokens of a bitmask: as many as the model has, or more."""
        ...

    @property
    def eos_tokens(self) -> Collection[int]:
        """What they take for the end: a guess where the model has none."""
        ...


class RequestGrammar:
    """The grammar of one request after the tokens that it has. `end_tokens` end it, `eos_tokens` the matcher.

    An end token may come where the output may end. `error`: why no bitmask could be made, and no token will come.
    `thought` is the reasoning that goes before, where it has a limit; without a `matcher` there is only that limit.
    """

    __slots__ = (
        *("_bits", "_matcher", "_never", "_other_ends", "_slow_s", "_target", "_thought", "_vocab_size", "error"),
    )

    def __init__(
        self,
        matcher: Matcher | None,
        tokenizer: MatcherTokenizer,
        vocab_size: int,
        end_tokens: Collection[int],
        thought: FollowedThought | None = None,
    ):
        matcher_ends = tokenizer.eos_tokens
        self._matcher = matcher
        self._thought = thought
        self._vocab_size = vocab_size
        words = array(INT32, bytes(4 * -(-tokenizer.vocab_size // 32)))
        self._target = words.buffer_info()[0], 4 * len(words)
        """Address and bytes of what the matcher fills. `_bits` keeps the array alive and from being resized."""
        self._bits = memoryview(words).cast("B")[: 4 * -(-vocab_size // 32)]
        self._never = [token_id for token_id in matcher_ends if token_id not in end_tokens and token_id < vocab_size]
        self._other_ends = [
            token_id for token_id in end_tokens if token_id not in matcher_ends and 0 <= token_id < vocab_size
        ]
        self._slow_s = 0.0
        self.error: ErrorInfo | None = None

    @property
    def is_complete(self) -> bool:
        matcher = self._matcher
        return matcher is not None and matcher.is_stopped() and not matcher.get_error()

    @property
    def needs_last_token(self) -> bool:
        """True if what may come next but one depends on which token comes next."""
        return self._matcher is not None or (self._thought is not None and self._thought.is_near_end)

    @property
    def is_slow(self) -> bool:
        """Tells whether a bitmask has taken so long that only so many more may."""
        return self._slow_s > 0

    def accept(self, token_id: int) -> Ending | None:
        """Moves on by a token that does not end the request; returns how the request ends with it, if it does."""
        if self._thought is not None:
            self._thought.accept(token_id)
        matcher = self._matcher
        if matcher is None:
            return None
        if not matcher.consume_token(token_id):
            return Ending("error", error=self.error or _explain(matcher.get_error()))
        return COMPLETE if matcher.is_stopped() else None

    def bitmask(self, draft_ids: Sequence[int] = ()) -> bytes:
        """Returns the int32 words of the tokens that may come after these draft tokens: none where there is an error.

        After a draft token that may not come itself, whatever may come will not be used. It is empty if any may come.
        """
        matcher = self._matcher
        if self.error is not None:
            return bytes(len(self._bits))
        if self._thought is not None and (closing := self._thought.forced_ids(draft_ids)):
            return self._only(closing[0])
        if matcher is None:
            return b""
        start_s = time.thread_time()
        num_drafts = matcher.try_consume_tokens(list(draft_ids)) if draft_ids else 0
        bitmask = self._make_bitmask(matcher) if num_drafts == len(draft_ids) else bytes(len(self._bits))
        if num_drafts:
            matcher.rollback(num_drafts)
        self._note_time(time.thread_time() - start_s)
        return bitmask

    def forced_ids(self) -> "array[int]":
        """Returns the int32 ids, as the tokenizer would write them, of the text that must come next.

        Other tokens may write the same text, so the model may still choose differently.
        """
        if self._thought is not None and (closing := self._thought.forced_ids()):
            return closing
        if self.error is not None or self._matcher is None:
            return array(INT32)
        start_s = time.thread_time()
        forced = array(INT32, takewhile(self._vocab_size.__gt__, self._matcher.compute_ff_tokens()))
        self._note_time(time.thread_time() - start_s)
        return forced

    def leaves_none(self, is_banned: Callable[[int], bool]) -> bool:
        """Tells whether all that the grammar allows is banned by something else."""
        bits = self.bitmask()
        bitmask = int.from_bytes(bits, "little") if bits else (1 << self._vocab_size) - 1
        return all(is_banned(token_id) for token_id in range(bitmask.bit_length()) if bitmask >> token_id & 1)

    def _only(self, token_id: int) -> bytes:
        return (1 << token_id).to_bytes(len(self._bits), "little")

    def _make_bitmask(self, matcher: Matcher) -> bytes:
        bits = self._bits
        matcher.unsafe_compute_mask_ptr(*self._target)
        words = matcher.get_error()
        if words and not words.startswith("NoExtension"):
            self.error = _explain(words)
            return bytes(len(bits))
        for token_id in self._never:
            bits[token_id >> 3] &= ~(1 << (token_id & 7))
        if self._other_ends and matcher.is_accepting():
            for token_id in self._other_ends:
                bits[token_id >> 3] |= 1 << (token_id & 7)
        return bits.tobytes()

    def _note_time(self, spent_s: float) -> None:
        if spent_s > SLOW_MASK_S:
            self._slow_s += spent_s
            if self._slow_s > MAX_SLOW_S:
                self.error = _explain("finding the tokens that may come takes too long: make it simpler")


def make_grammar(
    matcher: Matcher | None,
    tokenizer: MatcherTokenizer,
    params: SamplingParams,
    output_ids: "array[int]",
    eos_token_ids: Collection[int],
    vocab_size: int,
    thought: FollowedThought | None = None,
) -> RequestGrammar:
    """Returns the grammar of a request that has this output. Raises `RequestError` where the output is none of it."""
    if matcher is not None and output_ids and matcher.try_consume_tokens(output_ids.tolist()) < len(output_ids):
        words = matcher.get_error() or "the output so far is not what it allows"
        raise bad_request(f"the grammar cannot be continued: {words}")
    return RequestGrammar(matcher, tokenizer, vocab_size, end_tokens_of(params, eos_token_ids), thought)


def _explain(words: str) -> ErrorInfo:
    return ErrorInfo(status=400, message=f"the grammar cannot be followed any further: {words.split(chr(10), 1)[0]}")
