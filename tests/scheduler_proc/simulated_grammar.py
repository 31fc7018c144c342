"""Grammars over token ids, without any text: which ids may come is a hash of the grammar and of all ids before."""

import ctypes
import zlib
from collections.abc import Sequence

from messages.errors import ErrorInfo
from messages.ring.requests import Grammar, SamplingParams
from scheduler_proc.deciding.requests import Limits, PendingReq
from scheduler_proc.deciding.sampling.endings import end_tokens_of
from scheduler_proc.deciding.sampling.grammars import RequestGrammar, make_grammar

EOS = 7
"""The end-of-sequence id of all grammars here, and so of a bench with any."""

FORCING = 99


class SimulatedTokenizer:
    """A tokenizer with more tokens than the model, so that bitmasks are longer than the model's."""

    eos_tokens = (EOS,)

    def __init__(self, model_vocab_size: int):
        self.vocab_size = model_vocab_size + 40

    def decode_bytes(self, tokens: list[int], /) -> bytes:
        return b"".join(b"%03d" % token_id for token_id in tokens)


def grammar_of(num_tokens: int, salt: int = 0) -> Grammar:
    """Returns the grammar of outputs of `num_tokens`, which may end when they have half of them."""
    return Grammar("llguidance", f"{num_tokens} {salt}", "response_format")


class SimulatedMatcher:
    """As `llguidance.LLMatcher`. About a third of the ids may come next, and EOS where the output may end.

    With the salt `FORCING` it is often only one.
    """

    def __init__(self, text: str, vocab_size: int):
        self._num_tokens, self._salt = map(int, text.split())
        self._vocab_size = vocab_size
        self._consumed: list[int] = []
        self._error = ""

    def allowed(self) -> set[int]:
        """Returns the ids that may come next, without EOS; some id always may, unless the grammar is complete."""
        if self.is_stopped():
            return set()
        before = self._state()
        ids = {each for each in range(self._vocab_size) if zlib.crc32(b"%d %d" % (before, each)) % 3 == 0}
        ids = (ids - {EOS}) or {1}
        return {min(ids)} if self._salt == FORCING and before % 4 else ids

    def _state(self) -> int:
        return zlib.crc32(repr((self._salt, self._consumed)).encode())

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int, /) -> None:
        if trg_byte_size != 4 * -(-SimulatedTokenizer(self._vocab_size).vocab_size // 32):
            raise ValueError("Invalid buffer size")
        ids = self.allowed() | ({EOS} if self.is_accepting() else set())
        bitmask = sum(1 << token_id for token_id in ids).to_bytes(trg_byte_size, "little")
        ctypes.memmove(trg_pointer, bitmask, trg_byte_size)

    def consume_token(self, sampled_token: int, /) -> bool:
        if self._error or sampled_token not in self.allowed():
            self._error = f"{sampled_token} may not come"
            return False
        self._consumed.append(sampled_token)
        return True

    def try_consume_tokens(self, tokens: list[int], /) -> int:
        for index, token_id in enumerate(tokens):
            if token_id not in self.allowed():
                return index
            self._consumed.append(token_id)
        return len(tokens)

    def rollback(self, num_tokens: int, /) -> bool:
        del self._consumed[len(self._consumed) - num_tokens :]
        return True

    def is_accepting(self) -> bool:
        return 2 * len(self._consumed) >= self._num_tokens

    def is_stopped(self) -> bool:
        return bool(self._error) or len(self._consumed) >= self._num_tokens

    def get_error(self) -> str:
        return self._error


class SimulatedGrammars:
    """Compiles every other grammar at once; the others when it has been asked a few times. "bad" never compiles."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._num_asked = 0
        self.compiling: list[PendingReq] = []

    def find(self, pending: PendingReq) -> RequestGrammar | None:
        self._num_asked += 1
        is_slow = pending.num_output_tokens or self._num_asked % 2 or _text_of(pending.sampling_params) == "bad"
        return None if is_slow else self._build(pending)

    def start(self, pending: PendingReq) -> None:
        self.compiling.append(pending)

    def pop_built(self) -> list[tuple[PendingReq, RequestGrammar | ErrorInfo]]:
        self._num_asked += 1
        if not self.compiling or self._num_asked % 3:
            return []
        pending = self.compiling.pop()
        if _text_of(pending.sampling_params) == "bad":
            return [(pending, ErrorInfo(400, "the grammar is bad"))]
        return [(pending, self._build(pending))]

    def _build(self, pending: PendingReq) -> RequestGrammar:
        limits, params = self._limits, pending.sampling_params
        matcher = SimulatedMatcher(_text_of(params), limits.vocab_size)
        output_ids = pending.token_ids[pending.num_prompt_tokens :]
        end_tokens = end_tokens_of(params, limits.eos_token_ids)
        return make_grammar(matcher, SimulatedTokenizer(limits.vocab_size), output_ids, limits.vocab_size, end_tokens)


def allowed_next(
    params: SamplingParams, output: Sequence[int], eos_token_ids: Sequence[int], vocab_size: int
) -> set[int] | None:
    """Returns what may come after an output: `None` for anything, an empty set where the grammar is complete."""
    if params.grammar is None:
        return None
    matcher = SimulatedMatcher(params.grammar.text, vocab_size)
    assert matcher.try_consume_tokens(list(output)) == len(output)
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
    allowed = matcher.allowed()
    return allowed | ends if allowed and matcher.is_accepting() else allowed


def _text_of(params: SamplingParams) -> str:
    assert params.grammar is not None
    return params.grammar.text
