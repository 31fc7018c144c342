"""Tokens with their logprobs as clients see them: each with its text, its bytes, its place, and its alternatives."""

from collections.abc import Iterator, Sequence

from detokenizer_proc.decoders import CountingDecoder, Decoder
from detokenizer_proc.vocabulary import Spelling, Vocabulary
from messages.columns import unpack_float32, unpack_int32
from messages.ring.replies import OpenStream, PositionLogprobs, PromptLogprobs, PromptReply, TokenLogprob
from messages.ring.steps import LogprobColumns


class LogprobTable:
    """The rows of some `LogprobColumns`, unpacked."""

    def __init__(self, columns: LogprobColumns):
        self.token_ids = unpack_int32(columns.token_ids)
        self._logprobs = unpack_float32(columns.logprobs)
        self._num_top = columns.num_top
        self._top_ids = unpack_int32(columns.top_ids)
        self._top_logprobs = unpack_float32(columns.top_logprobs)

    def logprob(self, index: int) -> float:
        return self._logprobs[index]

    def top(self, index: int, num_top: int) -> Iterator[tuple[int, float]]:
        """Returns the first `num_top` alternatives of token `index` as (token id, logprob)."""
        start = index * self._num_top
        end = start + min(num_top, self._num_top)
        return zip(self._top_ids[start:end], self._top_logprobs[start:end], strict=True)


class StepLogprobs:
    """The logprobs of a step: `entries` (int32) are the places of the tokens that have any."""

    def __init__(self, entries: bytes, columns: LogprobColumns):
        self.table = LogprobTable(columns)
        self.index_of = {entry: index for index, entry in enumerate(unpack_int32(entries))}


class OutputLogprobs:
    """How the output tokens of one stream are told: with `num_top` alternatives, in the text of `decoder`."""

    __slots__ = ("_decoder", "_num_top", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, decoder: CountingDecoder, num_top: int):
        self._vocabulary = vocabulary
        self._decoder = decoder
        self._num_top = num_top

    def describe(self, table: LogprobTable, index: int) -> PositionLogprobs:
        """Returns token `index` of the table, which the decoder has not had yet."""
        return _describe(self._vocabulary, self._decoder, table, index, self._num_top)


class PromptLogprobReader:
    """What is kept of a prompt until its logprobs have come."""

    __slots__ = ("_opening", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, opening: OpenStream):
        self._vocabulary = vocabulary
        self._opening = opening

    def tell(self, message: PromptLogprobs) -> PromptReply:
        """Returns the prompt's tokens; the first has no logprob. Raises `ValueError` for another prompt's logprobs."""
        prompt_ids = unpack_int32(self._opening.prompt_ids)
        table, num_top = LogprobTable(message.logprobs), self._opening.num_prompt_logprobs or 0
        if prompt_ids[1:] != table.token_ids:
            raise ValueError(f"logprobs of {len(table.token_ids)} tokens for a prompt of {len(prompt_ids)}")
        decoder = CountingDecoder(self._vocabulary.open_decoder(self._opening.skip_special_tokens))
        first = TokenLogprob(prompt_ids[0], *self._vocabulary.spell_first(prompt_ids[0]), None)
        tokens = [PositionLogprobs(first, (), 0)]
        texts = [decoder.push(prompt_ids[0])]
        for index, token_id in enumerate(table.token_ids):
            tokens.append(_describe(self._vocabulary, decoder, table, index, num_top))
            texts.append(decoder.push(token_id))
        text = "".join(texts) + decoder.settle()
        return PromptReply(message.uid, message.attempt, text, tuple(tokens), self._opening.prompt_ids)


def read_prompt(decoder: Decoder, prompt_ids: Sequence[int]) -> str:
    """Returns the text of the prompt; what `decoder` returns from now on is what follows it."""
    text = "".join([decoder.push(token_id) for token_id in prompt_ids])
    return text + decoder.settle() if prompt_ids else text


def _describe(
    vocabulary: Vocabulary, decoder: CountingDecoder, table: LogprobTable, index: int, num_top: int
) -> PositionLogprobs:
    token_id = table.token_ids[index]
    return PositionLogprobs(
        _logprob(token_id, vocabulary.spell(token_id), table.logprob(index)),
        tuple([_logprob(top_id, vocabulary.spell(top_id), logprob) for top_id, logprob in table.top(index, num_top)]),
        decoder.offset_of(token_id),
    )


def _logprob(token_id: int, spelling: Spelling, logprob: float) -> TokenLogprob:
    return TokenLogprob(token_id, spelling[0], spelling[1], logprob)
