"""The logits processors of requests, and the columns of a step's `LogitsProcessing`.

A request's `LogitsProcessors` are made once; each step only joins the bytes of the rows that have any.
"""

from array import array
from collections.abc import Callable, Collection
from functools import lru_cache
from math import inf

from messages.columns import FLOAT32, INT32, num_int32, pack_float32, pack_int32, unpack_int32
from messages.ring.requests import SamplingParams
from messages.ring.steps import LogitsProcessing
from scheduler_proc.deciding.sampling.dry import DryPenalty

BAN_BYTES = pack_float32([-inf])
UNKNOWN_BYTES = pack_int32([0])


class LogitsProcessors:
    """The changes that one request makes to its logits, always or depending on its tokens so far.

    `ids` (int32) and `values` (float32) are biases and permanent bans; `end_ids` (int32) are banned until there are
    `min_tokens` of output. `words` has the bad words of several tokens by their last token but one: the tokens before
    the last, and the last as bytes. `penalties` are (repetition, frequency, presence), `None` without effect.
    """

    __slots__ = ("allowed_ids", "dry", "end_ids", "ids", "min_tokens", "penalties", "values", "words")

    def __init__(self, params: SamplingParams, end_ids: bytes):
        self.allowed_ids = params.allowed_token_ids
        banned, self.words = _split_words(params.bad_word_ids)
        self.ids = params.bias_ids + banned
        self.values = params.bias_values + BAN_BYTES * num_int32(banned)
        self.min_tokens = params.min_tokens
        self.end_ids = end_ids
        penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        self.penalties = None if penalties == (1.0, 0.0, 0.0) else penalties
        self.dry = DryPenalty(params.dry) if params.dry is not None else None

    @property
    def needs_last_token(self) -> bool:
        """True if the columns depend on the last token.

        Penalties do not: the device adds the last token to their history.
        """
        return bool(self.words) or self.dry is not None

    def banned_now(self, token_ids: "array[int]", num_output_tokens: int) -> bytes:
        """Returns the int32 ids that are banned after these tokens, in addition to those in `ids`.

        A bad word that begins in the prompt may be completed, as in vLLM.
        """
        banned = self.end_ids if num_output_tokens < self.min_tokens else b""
        if not self.words or not num_output_tokens:
            return banned
        for beginning, last in self.words.get(token_ids[-1], ()):
            if num_output_tokens >= len(beginning) and token_ids[-len(beginning) :] == beginning:
                banned += last
        return banned

    def leaves_none(self, token_ids: "array[int]", num_output_tokens: int) -> bool:
        """True if every allowed token is banned after these tokens."""
        if not self.allowed_ids:
            return False
        banned = self._banned(token_ids, num_output_tokens)
        return all(map(banned.__contains__, unpack_int32(self.allowed_ids)))

    def bans(self, token_ids: "array[int]", num_output_tokens: int) -> Callable[[int], bool]:
        """Returns a predicate for the tokens that are banned after these."""
        allowed, banned = frozenset(unpack_int32(self.allowed_ids)), self._banned(token_ids, num_output_tokens)
        return lambda token_id: token_id in banned or (bool(allowed) and token_id not in allowed)

    def _banned(self, token_ids: "array[int]", num_output_tokens: int) -> set[int]:
        values = memoryview(self.values).cast(FLOAT32)
        banned = {token_id for token_id, value in zip(unpack_int32(self.ids), values, strict=True) if value == -inf}
        return banned.union(unpack_int32(self.banned_now(token_ids, num_output_tokens)))


@lru_cache(maxsize=4)
def _split_words(words: tuple[bytes, ...]) -> "tuple[bytes, dict[int, list[tuple[array[int], bytes]]]]":
    """Returns the ids of words of one token, and the longer words. Choices share the result."""
    longer: dict[int, list[tuple[array[int], bytes]]] = {}
    for word in words:
        if len(word) > 4:
            beginning = unpack_int32(word[:-4])
            longer.setdefault(beginning[-1], []).append((beginning, word[-4:]))
    return b"".join([word for word in words if len(word) == 4]), longer


def find_logits_processors(
    params: SamplingParams, eos_token_ids: Collection[int], vocab_size: int
) -> LogitsProcessors | None:
    """Returns the logits processors of a request, `None` if it has none."""
    end_ids = b""
    if params.min_tokens:
        ids = {*eos_token_ids, *params.stop_token_ids}
        end_ids = pack_int32(sorted(token_id for token_id in ids if 0 <= token_id < vocab_size))
    processors = LogitsProcessors(params, end_ids)
    of_tokens = processors.words or processors.penalties or processors.dry
    has_any = processors.allowed_ids or processors.ids or processors.end_ids or of_tokens
    return processors if has_any else None


class LogitsProcessingColumns:
    """Builds the columns of one step."""

    def __init__(self) -> None:
        self._allowed_rows: array[int] = array(INT32)
        self._allowed_ids: list[bytes] = []
        self._bias_rows: list[bytes] = []
        self._bias_ids: list[bytes] = []
        self._bias_values: list[bytes] = []
        self._penalty_rows: array[int] = array(INT32)
        self._penalties: list[tuple[float, float, float]] = []
        self._histories: list[bytes] = []
        self._num_history_prompt: array[int] = array(INT32)
        self._bitmask_rows: array[int] = array(INT32)
        self._bitmasks: list[bytes] = []

    def add(
        self,
        row: int,
        processors: LogitsProcessors,
        token_ids: "array[int]",
        num_prompt_tokens: int,
        num_output_tokens: int,
    ) -> None:
        """Adds the processors for a request's next token; `row` is its index into the S rows.

        `token_ids` may lack the last of the output if the row does not need it (`needs_last_token`).
        """
        if processors.allowed_ids:
            self._allowed_rows.append(row)
            self._allowed_ids.append(processors.allowed_ids)
        banned = processors.banned_now(token_ids, num_output_tokens)
        repeated = processors.dry.penalties(token_ids) if processors.dry is not None else {}
        if processors.ids or banned or repeated:
            num_banned = num_int32(banned)
            self._bias_rows.append(pack_int32((row,)) * (num_int32(processors.ids) + num_banned + len(repeated)))
            self._bias_ids += (processors.ids, banned, pack_int32(repeated))
            self._bias_values += (processors.values, BAN_BYTES * num_banned, pack_float32(repeated.values()))
        if processors.penalties is not None:
            self._penalty_rows.append(row)
            self._penalties.append(processors.penalties)
            num_unknown = num_prompt_tokens + num_output_tokens - len(token_ids)
            self._histories.append(token_ids.tobytes() + UNKNOWN_BYTES * num_unknown)
            self._num_history_prompt.append(num_prompt_tokens)

    def add_bitmask(self, row: int, bitmask: bytes) -> None:
        """Adds the bitmask of this row's grammar. All bitmasks have the same number of words."""
        self._bitmask_rows.append(row)
        self._bitmasks.append(bitmask)

    def columns(self) -> LogitsProcessing | None:
        """Returns the columns, `None` if no row has a change."""
        if not (self._allowed_rows or self._bias_rows or self._penalty_rows or self._bitmask_rows):
            return None
        return LogitsProcessing(
            allowed_rows=self._allowed_rows.tobytes(),
            num_allowed=pack_int32(map(num_int32, self._allowed_ids)),
            allowed_ids=b"".join(self._allowed_ids),
            bias_rows=b"".join(self._bias_rows),
            bias_ids=b"".join(self._bias_ids),
            bias_values=b"".join(self._bias_values),
            penalty_rows=self._penalty_rows.tobytes(),
            repetition_penalties=pack_float32(penalties[0] for penalties in self._penalties),
            frequency_penalties=pack_float32(penalties[1] for penalties in self._penalties),
            presence_penalties=pack_float32(penalties[2] for penalties in self._penalties),
            num_history=pack_int32(map(num_int32, self._histories)),
            num_history_prompt=self._num_history_prompt.tobytes(),
            history_ids=b"".join(self._histories),
            bitmask_rows=self._bitmask_rows.tobytes(),
            bitmasks=b"".join(self._bitmasks),
            num_mask_words=num_int32(self._bitmasks[0]) if self._bitmasks else 0,
        )
