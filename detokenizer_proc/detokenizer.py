"""Decodes the tokens of each step into the open streams."""

import logging
import secrets
import time
from collections.abc import Sequence
from itertools import chain

from detokenizer_proc.decoders import CountingDecoder
from detokenizer_proc.logprobs import LogprobFormatter, LogprobTable, PromptLogprobReader
from detokenizer_proc.streams import NO_TOKENS, Stream, TokenRun
from detokenizer_proc.vocabulary import Vocabulary
from messages.columns import pack_counts, pack_int32, pack_int64, runs_of, unpack_int32, unpack_int64
from messages.errors import ErrorInfo
from messages.ring.cache import CacheExplained, CacheListed
from messages.ring.peers import ToFrontend
from messages.ring.replies import (
    CacheFlushed,
    DetokenizeMsg,
    FinishedRow,
    OpenStream,
    PooledReply,
    PositionLogprobs,
    PromptLogprobs,
    PromptReply,
    StepReplies,
    ToDetokenizer,
    UserReply,
)
from messages.ring.requests import DropBefore, FramesLost, StopSeen
from messages.ring.timeline import ScheduleReport
from messages.ring.uids import GoneRequests

Answer = tuple[list[ToFrontend], list[StopSeen]]
"""The messages for frontends and for schedulers that result from one message."""

log = logging.getLogger("sluice.detokenizer")


class Detokenizer:
    """Owns the `Stream` of each request from its `OpenStream` to its `FinishedRow`."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._streams: dict[int, Stream] = {}
        self._gone = GoneRequests()

    def gauges(self) -> dict[str, float]:
        """`ended_streams` have found a stop string and wait until the scheduler ends the row."""
        streams = self._streams.values()
        return {"streams": len(streams), "ended_streams": sum(stream.has_ended for stream in streams)}

    def handle(self, message: ToDetokenizer) -> Answer:
        """Processes one message. Never raises for an error of a single request."""
        match message:
            case DetokenizeMsg():
                replies, stops = self.handle_step(message)
                return [replies], stops
            case OpenStream():
                return self.open_stream(message)
            case PromptLogprobs():
                return self._send_prompt(message)
            case PooledReply() | CacheFlushed() | ScheduleReport() | CacheExplained() | CacheListed():
                return [message], []
            case DropBefore():
                self.drop(message)
                return [], []
            case FramesLost():
                # Some streams may lack a token, so all are dropped. The frontend resubmits their requests.
                self._streams.clear()
                return [message], []

    def open_stream(self, opening: OpenStream) -> Answer:
        """Creates the stream, which replaces that of an older attempt.

        Replies with the prompt if it is requested, unless its logprobs will come. Sends `StopSeen` if the text of
        earlier attempts already contains a stop string.
        """
        known = self._streams.get(opening.uid)
        if known is not None and known.attempt >= opening.attempt:
            return [], []
        stream = self._make_stream(opening)
        self._streams[opening.uid] = stream
        replies: list[ToFrontend] = []
        try:
            prompt_text = stream.catch_up(opening)
        except BaseException:  # fails alone; a panic in the tokenizers library is not an Exception
            stream.fail(_failure(opening.uid))
        else:
            if (opening.echo or opening.begins_in_thought) and opening.num_prompt_logprobs is None:
                text, token_ids = (prompt_text, opening.prompt_ids) if opening.echo else ("", b"")
                replies.append(
                    PromptReply(opening.uid, opening.attempt, text, (), token_ids, opening.begins_in_thought)
                )
        return replies, [StopSeen(opening.uid, opening.attempt, opening.engine)] if stream.has_ended else []

    def _make_stream(self, opening: OpenStream) -> Stream:
        decoder = self._vocabulary.open_decoder(opening.skip_special_tokens)
        hidden_stops = self._vocabulary.find_special(opening.stop) if opening.skip_special_tokens else {}
        wants_prompt = opening.num_prompt_logprobs is not None
        prompt_logprobs = PromptLogprobReader(self._vocabulary, opening) if wants_prompt else None
        if opening.num_logprobs is None:
            return Stream(opening, decoder, hidden_stops, prompt_logprobs=prompt_logprobs)
        counting = CountingDecoder(decoder)
        output_logprobs = LogprobFormatter(self._vocabulary, counting, opening.num_logprobs)
        return Stream(opening, counting, hidden_stops, output_logprobs, prompt_logprobs)

    def _send_prompt(self, message: PromptLogprobs) -> Answer:
        stream = self._streams.get(message.uid)
        if stream is None or stream.attempt != message.attempt or stream.prompt_logprobs is None or stream.has_ended:
            return [], []
        try:
            return [stream.prompt_logprobs.make_reply(message)], []
        except BaseException:
            stream.fail(_failure(message.uid))
            return [], [StopSeen(message.uid, message.attempt, stream.engine)]
        finally:
            stream.prompt_logprobs = None

    def handle_step(self, step: DetokenizeMsg) -> tuple[StepReplies, list[StopSeen]]:
        """Returns the replies of the step, and a `StopSeen` for each stream that ended in it.

        Tokens of unknown requests, of older attempts and after the end of the text are dropped.
        """
        replies, stops = _Replies(), list[StopSeen]()
        step_logprobs = None if step.logprobs is None else LogprobTable(step.logprobs, step.logprob_entries)
        ending = {(row.uid, row.attempt) for row in step.finished}
        last_tokens: dict[int, TokenRun] = {}
        first = 0
        columns = unpack_int64(step.uids), unpack_int32(step.attempts), runs_of(step.token_ids, step.num_tokens)
        for uid, attempt, token_ids in zip(*columns, strict=True):
            run_start = first
            first += len(token_ids)
            stream = self._streams.get(uid)
            if stream is None or stream.attempt != attempt or stream.has_ended:
                continue
            if ending and (uid, attempt) in ending:
                last_tokens[uid] = TokenRun(token_ids, run_start, step_logprobs)
                continue
            try:
                if len(token_ids) == 1 and step_logprobs is None:  # the most frequent case
                    text = stream.push(token_ids[0])
                else:
                    text, token_ids, logprobs = stream.push_run(TokenRun(token_ids, run_start, step_logprobs))
                    replies.add_logprobs(logprobs)
            except BaseException:
                stream.fail(_failure(uid))
                stops.append(StopSeen(uid, attempt, step.engine))
                continue
            replies.uids.append(uid)
            replies.attempts.append(attempt)
            replies.runs.append(token_ids)
            replies.texts.append(text)
            if stream.has_ended:
                stops.append(StopSeen(uid, attempt, step.engine))
        return replies.message(step, self._finish(step.finished, last_tokens)), stops

    def drop(self, message: DropBefore) -> None:
        """Removes the streams of requests whose frontend is gone. They may never end."""
        self._gone.record(message)
        for orphan in [uid for uid in self._streams if self._gone.has(uid)]:
            del self._streams[orphan]

    def _finish(self, rows: tuple[FinishedRow, ...], last_tokens: dict[int, TokenRun]) -> tuple[UserReply, ...]:
        finals: list[UserReply] = []
        now_ns = time.monotonic_ns()
        for row in rows:
            stream = self._streams.get(row.uid)
            if stream is None or stream.attempt != row.attempt:
                log.debug("request %d attempt %d ended, but has no stream", row.uid, row.attempt)
                continue
            del self._streams[row.uid]
            try:
                final = stream.finish(row, last_tokens.get(row.uid, NO_TOKENS), now_ns)
            except BaseException:
                stream.fail(_failure(row.uid))
                final = stream.finish(row, NO_TOKENS, now_ns)
            finals.append(final)
        return tuple(finals)


class _Replies:
    """Collects the columns of one `StepReplies`."""

    def __init__(self) -> None:
        self.uids: list[int] = []
        self.attempts: list[int] = []
        self.runs: list[Sequence[int]] = []
        self.texts: list[str] = []
        self._logprob_entries: list[int] = []
        self._logprobs: list[PositionLogprobs] = []

    def add_logprobs(self, logprobs: list[PositionLogprobs]) -> None:
        """Adds the logprobs of the run that is appended next: of all its tokens, or none."""
        if logprobs:
            first = sum(map(len, self.runs))
            self._logprob_entries.extend(range(first, first + len(logprobs)))
            self._logprobs += logprobs

    def message(self, step: DetokenizeMsg, finals: tuple[UserReply, ...]) -> StepReplies:
        prefilled = tuple([row for row in step.prefilled if row.uid in self.uids]) if step.prefilled else ()
        return StepReplies(
            step_id=step.step_id,
            uids=pack_int64(self.uids),
            attempts=pack_int32(self.attempts),
            token_ids=pack_int32(chain.from_iterable(self.runs)),
            texts=tuple(self.texts),
            finals=finals,
            logprob_entries=pack_int32(self._logprob_entries),
            logprobs=tuple(self._logprobs),
            prefilled=prefilled,
            num_tokens=pack_counts(list(map(len, self.runs))),
            committed_ns=step.committed_ns,
            engine=step.engine,
        )


def _failure(uid: int) -> ErrorInfo:
    """Logs the current exception and returns the error for the client."""
    reference = secrets.token_hex(4)
    log.exception("request %d failed in the detokenizer, reference %s", uid, reference)
    return ErrorInfo(500, f"The output could not be decoded (reference {reference})", "server_error")
