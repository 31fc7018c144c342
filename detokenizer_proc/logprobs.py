"""Tokens with their logprobs as clients see them: each with its text, bytes, offset and alternatives."""

import math
from collections.abc import Sequence

from msgspec.structs import replace

from detokenizer_proc.decoders import CountingDecoder, Decoder
from detokenizer_proc.vocabulary import Spelling, Vocabulary
from messages.columns import unpack_float32, unpack_int32
from messages.ring.replies import OpenStream, PositionLogprobs, PromptLogprobs, PromptReply, TokenLogprob
from messages.ring.steps import LogprobColumns


class LogprobTable:
    """Unpacked `LogprobColumns`. `index_of`: the index into them by entry, if `entries` (int32) are given."""

    def __init__(self, columns: LogprobColumns, entries: bytes = b""):
        self.token_ids = unpack_int32(columns.token_ids)
        self.logprobs = unpack_float32(columns.logprobs)
        self.index_of = {entry: index for index, entry in enumerate(unpack_int32(entries))}
        self._num_top = columns.num_top
        self._top_ids = unpack_int32(columns.top_ids)
        self._top_logprobs = unpack_float32(columns.top_logprobs)

    def top(self, index: int, num_top: int) -> list[tuple[int, float]]:
        """Returns the first `num_top` alternatives of token `index` as (token id, logprob)."""
        start = index * self._num_top
        end = start + min(num_top, self._num_top)
        return list(zip(self._top_ids[start:end], self._top_logprobs[start:end], strict=True))


class LogprobFormatter:
    """Formats tokens of the text that `decoder` reads, with `num_top` alternatives each."""

    __slots__ = ("_decoder", "_num_top", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, decoder: CountingDecoder, num_top: int):
        self._vocabulary = vocabulary
        self._decoder = decoder
        self._num_top = num_top

    def format(self, table: LogprobTable, index: int) -> PositionLogprobs:
        """Returns token `index` of the table. Call it before the decoder gets the token."""
        token_id, spell = table.token_ids[index], self._vocabulary.spell
        return PositionLogprobs(
            _logprob(token_id, spell(token_id), table.logprobs[index]),
            tuple([_logprob(top_id, spell(top_id), logprob) for top_id, logprob in table.top(index, self._num_top)]),
            self._decoder.offset_of(token_id),
        )


class PromptLogprobReader:
    """Holds a prompt until its logprobs arrive."""

    __slots__ = ("_opening", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, opening: OpenStream):
        self._vocabulary = vocabulary
        self._opening = opening

    def make_reply(self, message: PromptLogprobs) -> PromptReply:
        """Returns the prompt's tokens; the first and those of spans have no logprob.

        Raises `ValueError` for another prompt's logprobs.
        """
        prompt_ids = unpack_int32(self._opening.prompt_ids)
        table = LogprobTable(message.logprobs)
        if prompt_ids[1:] != table.token_ids:
            raise ValueError(f"logprobs of {len(table.token_ids)} tokens for a prompt of {len(prompt_ids)}")
        decoder = CountingDecoder(self._vocabulary.open_decoder(self._opening.skip_special_tokens))
        formatter = LogprobFormatter(self._vocabulary, decoder, self._opening.num_prompt_logprobs or 0)
        tokens = [PositionLogprobs(_logprob(prompt_ids[0], self._vocabulary.spell_first(prompt_ids[0]), None), (), 0)]
        texts = [decoder.push(prompt_ids[0])]
        for index, token_id in enumerate(table.token_ids):
            entry = formatter.format(table, index)
            has_none = math.isnan(table.logprobs[index])
            tokens.append(replace(entry, token=replace(entry.token, logprob=None), top=()) if has_none else entry)
            texts.append(decoder.push(token_id))
        text = "".join(texts) + decoder.settle()
        opening = self._opening
        return PromptReply(
            opening.uid, opening.attempt, text, tuple(tokens), opening.prompt_ids, opening.begins_in_thought
        )


def read_prompt(decoder: Decoder, prompt_ids: Sequence[int]) -> str:
    """Returns the text of the prompt. Later text from `decoder` is the text that follows the prompt."""
    text = "".join([decoder.push(token_id) for token_id in prompt_ids])
    return text + decoder.settle() if prompt_ids else text


def _logprob(token_id: int, spelling: Spelling, logprob: float | None) -> TokenLogprob:
    return TokenLogprob(token_id, *spelling, logprob)
