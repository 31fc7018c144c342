"""The tokens that a request's grammar allows next, and whether it is complete."""

import time
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from messages.columns import INT32
from messages.errors import ErrorInfo, bad_request
from scheduler_proc.deciding.sampling.endings import COMPLETE, Ending
from scheduler_proc.deciding.sampling.grammar_time import GrammarTime, TimeAccount
from scheduler_proc.deciding.sampling.thought_limits import FollowedThought

MAX_FORCED = 32
"""The maximum number of forced tokens found in one step; each takes a bitmask."""

MAX_SPELLINGS = 16
"""The maximum number of allowed tokens that may all be beginnings of one forced text."""


class Matcher(Protocol):
    """The state of a compiled grammar in an output, such as `llguidance.LLMatcher`."""

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int, /) -> None:
        """Writes the bitmask to this address. Raises `ValueError` unless the size matches the tokenizer."""
        ...

    def consume_token(self, sampled_token: int, /) -> bool: ...
    def try_consume_tokens(self, tokens: list[int], /) -> int: ...
    def rollback(self, num_tokens: int, /) -> bool: ...
    def is_accepting(self) -> bool: ...
    def is_stopped(self) -> bool: ...
    def get_error(self) -> str: ...


class MatcherTokenizer(Protocol):
    """The tokenizer of matchers, such as `llguidance.LLTokenizer`."""

    @property
    def vocab_size(self) -> int:
        """The number of tokens in a bitmask, at least that of the model."""
        ...

    @property
    def eos_tokens(self) -> Collection[int]:
        """The end-of-sequence tokens of matchers: a guess if the model has none."""
        ...

    def decode_bytes(self, tokens: list[int], /) -> bytes: ...


class RequestGrammar:
    """The grammar of one request after its current tokens. `end_tokens` end the request, `eos_tokens` the matcher.

    End tokens are allowed wherever the output may end. Bitmasks are charged to `account`. `thought` is the reasoning
    before the output, if it is limited; without a `matcher` there is only that limit.
    """

    __slots__ = (
        *("_account", "_ahead", "_bits", "_error", "_matcher", "_never", "_other_ends", "_target", "_thought"),
        *("_tokenizer", "_vocab_size"),
    )

    def __init__(
        self,
        matcher: Matcher | None,
        tokenizer: MatcherTokenizer,
        vocab_size: int,
        end_tokens: Collection[int],
        account: TimeAccount | None = None,
        thought: FollowedThought | None = None,
    ):
        matcher_ends = tokenizer.eos_tokens
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._thought = thought
        self._vocab_size = vocab_size
        words = array(INT32, bytes(4 * -(-tokenizer.vocab_size // 32)))
        self._target = words.buffer_info()[0], 4 * len(words)
        """Address and size of the bitmask that the matcher fills. `_bits` keeps the array alive and its size fixed."""
        self._bits = memoryview(words).cast("B")[: 4 * -(-vocab_size // 32)]
        self._never = [token_id for token_id in matcher_ends if token_id not in end_tokens and token_id < vocab_size]
        self._other_ends = [
            token_id for token_id in end_tokens if token_id not in matcher_ends and 0 <= token_id < vocab_size
        ]
        self._account = account or GrammarTime().account_of(0)
        self._ahead: dict[tuple[int, ...], bytes] = {}
        """The bitmasks of this step, by the draft tokens before them."""
        self._error: ErrorInfo | None = None

    @property
    def error(self) -> ErrorInfo | None:
        """Why bitmasks, and therefore tokens, can no longer be computed."""
        return self._error or self._account.error

    @property
    def is_complete(self) -> bool:
        matcher = self._matcher
        return matcher is not None and matcher.is_stopped() and not matcher.get_error()

    @property
    def needs_last_token(self) -> bool:
        """True if the tokens allowed after the next one depend on the next one."""
        return self._matcher is not None or (self._thought is not None and self._thought.is_near_end)

    @property
    def is_slow(self) -> bool:
        """True if bitmasks have been slow, so that only necessary ones should be computed."""
        return self._account.is_slow

    def accept(self, token_id: int) -> Ending | None:
        """Advances by a token that is not an end token; returns the ending if the grammar is complete or has failed."""
        if self._thought is not None:
            self._thought.accept(token_id)
        matcher = self._matcher
        self._ahead.clear()
        if matcher is None:
            return None
        if not matcher.consume_token(token_id):
            return Ending("error", error=self.error or _explain(matcher.get_error()))
        return COMPLETE if matcher.is_stopped() else None

    def bitmask(self, draft_ids: Sequence[int] = ()) -> bytes:
        """Returns the bitmask, as int32 words, of the tokens allowed after these draft tokens: all 0 after an error.

        It is empty if all tokens are allowed, and arbitrary after a draft token that is itself not allowed.
        """
        matcher = self._matcher
        if self.error is not None:
            return bytes(len(self._bits))
        drafts = tuple(draft_ids)
        if self._thought is not None and (closing := self._thought.forced_ids(drafts)):
            return self._only(closing[0])
        if matcher is None:
            return b""
        return self._ahead.get(drafts) or self._look_ahead(matcher, drafts)

    def forced_ids(self, max_num_tokens: int) -> "array[int]":
        """Returns up to `max_num_tokens` int32 ids of the text that must come next, each the longest possible token.

        Other tokens may write the same text, so the model may still choose differently.
        """
        forced = array(INT32)
        max_num_tokens = min(max_num_tokens, MAX_FORCED)
        while len(forced) < max_num_tokens and not self.is_slow:
            token_id = self._find_forced(self.bitmask(forced))
            if token_id is None:
                break
            forced.append(token_id)
        return forced

    def _find_forced(self, bitmask: bytes) -> int | None:
        """Returns the longest allowed token if all others are prefixes of it and none is an end token."""
        bits = int.from_bytes(bitmask, "little")
        count = bits.bit_count()
        if not 1 <= count <= MAX_SPELLINGS:
            return None
        token_ids = list(_ids_in(bits))
        ends = {*self._tokenizer.eos_tokens, *self._other_ends}
        if token_ids[0] >= self._vocab_size or not ends.isdisjoint(token_ids):
            return None
        if count == 1:
            return token_ids[0]
        texts = [self._tokenizer.decode_bytes([token_id]) for token_id in token_ids]
        longest = max(texts, key=len)
        return token_ids[texts.index(longest)] if all(map(longest.startswith, texts)) else None

    def leaves_none(self, is_banned: Callable[[int], bool]) -> bool:
        """True if every token that the grammar allows is banned."""
        bits = self.bitmask()
        bitmask = int.from_bytes(bits, "little") if bits else (1 << self._vocab_size) - 1
        return all(map(is_banned, _ids_in(bitmask)))

    def _look_ahead(self, matcher: Matcher, drafts: tuple[int, ...]) -> bytes:
        start_s = time.thread_time()
        num_drafts = matcher.try_consume_tokens(list(drafts)) if drafts else 0
        bitmask = self._make_bitmask(matcher) if num_drafts == len(drafts) else bytes(len(self._bits))
        if num_drafts:
            matcher.rollback(num_drafts)
        self._account.charge(time.thread_time() - start_s)
        self._ahead[drafts] = bitmask
        return bitmask

    def _only(self, token_id: int) -> bytes:
        return (1 << token_id).to_bytes(len(self._bits), "little")

    def _make_bitmask(self, matcher: Matcher) -> bytes:
        bits = self._bits
        matcher.unsafe_compute_mask_ptr(*self._target)
        words = matcher.get_error()
        if words and not words.startswith("NoExtension"):
            self._error = _explain(words)
            return bytes(len(bits))
        for token_id in self._never:
            bits[token_id >> 3] &= ~(1 << (token_id & 7))
        if self._other_ends and matcher.is_accepting():
            for token_id in self._other_ends:
                bits[token_id >> 3] |= 1 << (token_id & 7)
        return bits.tobytes()


def make_grammar(
    matcher: Matcher | None,
    tokenizer: MatcherTokenizer,
    output_ids: "array[int]",
    vocab_size: int,
    end_tokens: Collection[int],
    account: TimeAccount | None = None,
    thought: FollowedThought | None = None,
) -> RequestGrammar:
    """Returns the grammar of a request after this output. Raises `RequestError` if the output does not match it."""
    if matcher is not None and output_ids and matcher.try_consume_tokens(output_ids.tolist()) < len(output_ids):
        words = matcher.get_error() or "the output so far is not what it allows"
        raise bad_request(f"the grammar cannot be continued: {words}")
    return RequestGrammar(matcher, tokenizer, vocab_size, end_tokens, account, thought)


def _explain(words: str) -> ErrorInfo:
    return ErrorInfo(status=400, message=f"the grammar cannot be followed any further: {words.split(chr(10), 1)[0]}")


def _ids_in(bits: int) -> Iterator[int]:
    """Yields the ids in a bitmask, the last one first."""
    while bits:
        token_id = bits.bit_length() - 1
        bits ^= 1 << token_id
        yield token_id
