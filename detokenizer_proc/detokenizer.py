"""All open streams, and what the tokens of a step do to them."""

import logging
import secrets
import time

from detokenizer_proc.streams import Stream
from detokenizer_proc.vocabulary import Vocabulary
from messages.columns import pack_int32, pack_int64, unpack_int32, unpack_int64
from messages.errors import ErrorInfo
from messages.replies import DetokenizeMsg, FinishedRow, OpenStream, StepReplies, UserReply
from messages.requests import StopSeen

log = logging.getLogger("sluice.detokenizer")


class Detokenizer:
    """Owns one `Stream` for each request from its `OpenStream` to its `FinishedRow`."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._streams: dict[int, Stream] = {}

    def gauges(self) -> dict[str, float]:
        """`ended_streams` have their stop string and wait for the scheduler to end the row."""
        streams = self._streams.values()
        return {"streams": len(streams), "ended_streams": sum(stream.has_ended for stream in streams)}

    def open_stream(self, order: OpenStream) -> StopSeen | None:
        """Makes the stream, in place of an older attempt's. Returns `StopSeen` where it has ended already."""
        known = self._streams.get(order.uid)
        if known is not None and known.attempt >= order.attempt:
            return None
        stream = Stream(order, self._vocabulary.open_decoder(order.skip_special_tokens))
        self._streams[order.uid] = stream
        try:
            stream.catch_up(order)
        except BaseException:  # fails alone; a panic in the tokenizers library is no Exception
            stream.fail(_failure(order.uid))
        return StopSeen(order.uid, order.attempt) if stream.has_ended else None

    def take_step(self, step: DetokenizeMsg) -> tuple[StepReplies, list[StopSeen]]:
        """Returns the replies of the step, and the streams that ended in it before the scheduler knows.

        Tokens of unknown requests, of older attempts, and those after the end of the text are dropped.
        """
        uids: list[int] = []
        attempts: list[int] = []
        token_ids: list[int] = []
        texts: list[str] = []
        stops: list[StopSeen] = []
        ending = {(row.uid, row.attempt) for row in step.finished}
        last_ids: dict[int, int] = {}
        columns = zip(unpack_int64(step.uids), unpack_int32(step.attempts), unpack_int32(step.token_ids), strict=True)
        for uid, attempt, token_id in columns:
            stream = self._streams.get(uid)
            if stream is None or stream.attempt != attempt or stream.has_ended:
                continue
            if ending and (uid, attempt) in ending:
                last_ids[uid] = token_id
                continue
            try:
                text = stream.push(token_id)
            except BaseException:
                stream.fail(_failure(uid))
                stops.append(StopSeen(uid, attempt))
                continue
            uids.append(uid)
            attempts.append(attempt)
            token_ids.append(token_id)
            texts.append(text)
            if stream.has_ended:
                stops.append(StopSeen(uid, attempt))
        replies = StepReplies(
            step_id=step.step_id,
            uids=pack_int64(uids),
            attempts=pack_int32(attempts),
            token_ids=pack_int32(token_ids),
            texts=tuple(texts),
            finals=self._finish(step.finished, last_ids),
        )
        return replies, stops

    def drop_before(self, uid: int) -> None:
        """Forgets the streams of requests with a smaller uid: nobody waits for their end, and none may come."""
        for orphan in [known for known in self._streams if known < uid]:
            del self._streams[orphan]

    def _finish(self, rows: tuple[FinishedRow, ...], last_ids: dict[int, int]) -> tuple[UserReply, ...]:
        finals: list[UserReply] = []
        now_ns = time.monotonic_ns()
        for row in rows:
            stream = self._streams.get(row.uid)
            if stream is None or stream.attempt != row.attempt:
                log.debug("request %d attempt %d ended, but has no stream", row.uid, row.attempt)
                continue
            del self._streams[row.uid]
            try:
                final = stream.finish(row, last_ids.get(row.uid), now_ns)
            except BaseException:
                stream.fail(_failure(row.uid))
                final = stream.finish(row, None, now_ns)
            finals.append(final)
        return tuple(finals)


def _failure(uid: int) -> ErrorInfo:
    """Logs the exception at hand and returns what the client gets to know of it."""
    reference = secrets.token_hex(4)
    log.exception("request %d failed in the detokenizer, reference %s", uid, reference)
    return ErrorInfo(500, f"The output could not be decoded (reference {reference})", "server_error")
