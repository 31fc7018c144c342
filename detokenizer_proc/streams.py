"""The text of one request: its increments, the stop string that ends it, and its final reply."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from detokenizer_proc.decoders import Decoder
from detokenizer_proc.logprobs import LogprobFormatter, LogprobTable, PromptLogprobReader, read_prompt
from detokenizer_proc.stop_strings import StopFinder
from messages.columns import pack_int32, unpack_int32
from messages.errors import ErrorInfo
from messages.ring.replies import FinishedRow, FinishReason, OpenStream, PositionLogprobs, UserReply


class TokenRun(NamedTuple):
    """The tokens of one row in a step: those of the step from index `first` on. `logprobs` are the whole step's."""

    token_ids: Sequence[int]
    first: int
    logprobs: LogprobTable | None


NO_TOKENS = TokenRun((), 0, None)


class Stream:
    """One attempt of one request. Holds back at most a partial character and the beginning of a stop string.

    `hidden_stops`: by token id, the stop strings that are special tokens not shown in the text.
    `has_ended`: a stop string was found or decoding failed, so later tokens are not part of the reply.
    `output_logprobs` formats the logprobs of the output, `prompt_logprobs` replies with those of the prompt; `None` if
    they are not requested, or have been sent.
    """

    def __init__(
        self,
        opening: OpenStream,
        decoder: Decoder,
        hidden_stops: Mapping[int, str],
        output_logprobs: LogprobFormatter | None = None,
        prompt_logprobs: PromptLogprobReader | None = None,
    ):
        self.attempt = opening.attempt
        self.engine = opening.engine
        self.has_ended = False
        self.num_tokens = 0
        self.output_logprobs = output_logprobs
        self.prompt_logprobs = prompt_logprobs
        self._decoder = decoder
        self._hidden_stops = hidden_stops
        self._min_tokens = opening.min_tokens
        self._shows_stop = opening.include_stop_str_in_output
        self._stops = StopFinder(opening.stop, self._shows_stop) if opening.stop else None
        self._error: ErrorInfo | None = None
        self._unsent = ""
        """Text of output tokens that earlier attempts have not sent."""

    def catch_up(self, opening: OpenStream) -> str:
        """Decodes the prompt, or its end, and returns its text. Then decodes the output of earlier attempts.

        Only output text that they have not sent will be sent. May set `has_ended`.
        """
        prompt_text = read_prompt(self._decoder, unpack_int32(opening.prompt_ids))
        texts: list[str] = []
        for token_id in unpack_int32(opening.output_ids):
            texts.append(self.push(token_id))
            if self.has_ended:
                break
        self._unsent = "".join(texts)[opening.num_chars_sent :]
        return prompt_text

    def push_run(self, run: TokenRun) -> tuple[str, Sequence[int], list[PositionLogprobs]]:
        """Returns the text that can be shown now, its tokens, and their logprobs.

        Drops the tokens after a stop string, which ends the stream.
        """
        texts: list[str] = []
        logprobs: list[PositionLogprobs] = []
        for place, token_id in enumerate(run.token_ids, run.first):
            self._append_logprobs(run.logprobs, place, logprobs)
            texts.append(self.push(token_id))
            if self.has_ended:
                break
        return "".join(texts), run.token_ids[: len(texts)], logprobs

    def push(self, token_id: int) -> str:
        """Returns the text that can be shown after this token. May set `has_ended`."""
        self.num_tokens += 1
        if self._stops is not None and token_id in self._hidden_stops and self.num_tokens > self._min_tokens:
            text = self._end_at(self._stops, self._hidden_stops[token_id])
        else:
            text = self._decoder.push(token_id)
            if self._stops is not None and text:
                text = self._find_stop(self._stops, text)
        if self._unsent:
            text = self._take_unsent() + text
        return text

    def fail(self, error: ErrorInfo) -> None:
        """Ends the text; the final reply will have `error`."""
        self.has_ended = True
        self._error = error

    def finish(self, row: FinishedRow, run: TokenRun, now_ns: int) -> UserReply:
        """Returns the final reply, with the row's last tokens, if any, and all text that was held back."""
        text = self._take_unsent()
        token_ids: Sequence[int] = ()
        logprobs: list[PositionLogprobs] = []
        if not self.has_ended and run.token_ids:
            shown, token_ids, logprobs = self._push_last(row, run)
            text += shown
        if not self.has_ended:
            text += self._flush()
        usage = row.usage
        if self.has_ended:
            usage = msgspec.structs.replace(usage, completion_tokens=self.num_tokens)
        finish_reason, stop_reason, error = self._outcome(row)
        return UserReply(
            uid=row.uid,
            attempt=row.attempt,
            finish_reason=finish_reason,
            incremental_output=text,
            token_ids=pack_int32(token_ids),
            usage=usage,
            stamps=msgspec.structs.replace(row.stamps, detokenized_ns=now_ns),
            stop_reason=stop_reason,
            error=error,
            logprobs=tuple(logprobs),
        )

    def _outcome(self, row: FinishedRow) -> tuple[FinishReason, str | int | None, ErrorInfo | None]:
        """Returns how the request ended; the end of the text takes precedence over the end of the row."""
        if self._error is not None:
            return "error", None, self._error
        if self._stops is not None and self._stops.found is not None:
            return "stop", self._stops.found, None
        return row.finish_reason, row.stop_reason, row.error

    def _push_last(self, row: FinishedRow, run: TokenRun) -> tuple[str, Sequence[int], list[PositionLogprobs]]:
        """Like `push_run`, but shows the text of a token that ended the row only if the request includes it."""
        if not row.ended_by_token or (self._shows_stop and row.stop_reason is not None):
            return self.push_run(run)
        text, token_ids, logprobs = self.push_run(run._replace(token_ids=run.token_ids[:-1]))
        if not self.has_ended:
            self._append_logprobs(run.logprobs, run.first + len(token_ids), logprobs)
            self.num_tokens += 1
            token_ids = run.token_ids
        return text, token_ids, logprobs

    def _append_logprobs(self, table: LogprobTable | None, place: int, logprobs: list[PositionLogprobs]) -> None:
        """Appends the logprobs of a token that is about to be pushed, if it has any."""
        if table is not None and self.output_logprobs is not None and place in table.index_of:
            logprobs.append(self.output_logprobs.format(table, table.index_of[place]))

    def _flush(self) -> str:
        """Returns the text that was held back. A stop string may end in it."""
        text = self._decoder.finish()
        if self._stops is None:
            return text
        text = self._find_stop(self._stops, text) if text else ""
        return text + self._stops.finish()

    def _find_stop(self, stops: StopFinder, text: str) -> str:
        shown = stops.push(text, self.num_tokens > self._min_tokens)
        self.has_ended = stops.found is not None
        return shown

    def _end_at(self, stops: StopFinder, stop: str) -> str:
        """Ends the text at a hidden stop string, unless another one ends in the text that was held back."""
        text = self._flush()
        if not self.has_ended:
            self.has_ended = True
            stops.found = stop
            text += stop if self._shows_stop else ""
        return text

    def _take_unsent(self) -> str:
        text, self._unsent = self._unsent, ""
        return text
