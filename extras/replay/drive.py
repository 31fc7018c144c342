"""Sends recorded requests to the replayed processes and collects their output."""

import time
from collections import deque
from collections.abc import Callable

from extras.replay.outcomes import Key, Outcome, Outcomes
from extras.replay.recording import OPENINGS, Attempt, Recording
from extras.replay.stand_in import StandIn
from messages.columns import unpack_int64
from messages.control.processes import RING
from messages.engine_names import SCHEDULER, engine_name
from messages.errors import SluiceError
from messages.ring.replies import DetokenizeMsg, OpenStream
from messages.ring.uids import block_of, frontend_socket

FIRST_OF_RING = RING[0]
STILL_S = 120.0
"""The time limit without any message while a reply is expected."""

POLL_S = 0.5

MAX_SENT = 1000
"""The number of messages sent to a detokenizer before its replies are received: channels hold many more."""


class ReplayDriver:
    """Replays `recording` at `speed` times its recorded speed; 0: as fast as the server takes it."""

    def __init__(self, recording: Recording, only: str, speed: float):
        self._recording = recording
        self._target = only or FIRST_OF_RING
        self._speed = speed
        self._open: dict[Key, Attempt] = {}
        self._outcomes = Outcomes(self._find_outcome)
        scheduling = recording.config.scheduling
        num_engines = recording.config.run.data_parallel
        self._max_open = num_engines * scheduling.max_num_seqs + scheduling.max_queued_requests
        self._begun_s = 0.0
        self._first_ns = 0

    def _find_outcome(self, key: Key) -> Outcome | None:
        attempt = self._recording.attempts.get(key)
        return attempt.replayed if attempt else None

    def run(self, server: StandIn) -> None:
        """Returns when all sent requests have ended. Raises `SluiceError` if no more messages arrive."""
        self._begun_s = time.monotonic()
        is_stream = OPENINGS[self._target] is OpenStream
        send_next = self._make_stream_sender(server) if is_stream else self._make_request_sender(server)
        last_s = time.monotonic()
        wait_s = 0.0
        while (wait_s := send_next()) < float("inf") or self._open:
            messages = server.receive(min(wait_s, POLL_S))
            for message in messages:
                self._outcomes.collect(message)
            self._look_for_ends(None if is_stream else server)
            if messages or wait_s < POLL_S or not self._open:
                last_s = time.monotonic()
            elif time.monotonic() - last_s > STILL_S:
                uid, attempt = next(iter(self._open))
                raise SluiceError(f"nothing has come for {STILL_S:g} s; request {uid}, attempt {attempt} has not ended")

    def _look_for_ends(self, server: StandIn | None) -> None:
        """Sends recorded ends of requests to the `server`, if there is one, and forgets requests that have ended."""
        for key, attempt in list(self._open.items()):
            has_come_so_far = len(attempt.replayed.tokens) >= attempt.num_tokens_before_end
            if attempt.replayed.reason:
                del self._open[key]
            elif server is not None and attempt.end is not None and has_come_so_far and not attempt.is_end_sent:
                server.send(self._receiver_of(attempt), attempt.end)
                attempt.is_end_sent = True

    def _make_request_sender(self, server: StandIn) -> Callable[[], float]:
        """Returns a function that sends the due messages and returns the seconds until its next call.

        A later attempt of a request waits until the previous one has ended, and all messages after it wait too.
        """
        waiting = deque(self._recording.attempts.values())
        self._first_ns = waiting[0].sent_ns

        def send_due() -> float:
            open_uids = {uid for uid, _ in self._open}
            while waiting:
                attempt = waiting[0]
                due_s = self._due_in_s(attempt.sent_ns)
                if due_s > 0 or attempt.key[0] in open_uids or len(self._open) >= self._max_open:
                    return max(due_s, POLL_S)
                self._open[attempt.key] = waiting.popleft()
                open_uids.add(attempt.key[0])
                attempt.is_sent = True
                server.send(self._receiver_of(attempt), attempt.opening)
            return float("inf")

        return send_due

    def _make_stream_sender(self, server: StandIn) -> Callable[[], float]:
        """The same for a detokenizer, which is sent all recorded messages: it needs no reply to continue."""
        waiting = deque(self._recording.inputs)
        self._first_ns = waiting[0][0]
        self._open = {key: one for key, one in self._recording.attempts.items() if one.is_whole}

        def send_due() -> float:
            for _ in range(min(MAX_SENT, len(waiting))):
                due_s = self._due_in_s(waiting[0][0])
                if due_s > 0:
                    return due_s
                server.send(self._target, waiting.popleft()[1])
            return 0.0 if waiting else float("inf")

        return send_due

    def _receiver_of(self, attempt: Attempt) -> str:
        return engine_name(attempt.engine) if self._target == SCHEDULER else self._target

    def _due_in_s(self, sent_ns: int) -> float:
        if not self._speed:
            return 0.0
        return self._begun_s + (sent_ns - self._first_ns) / 1e9 / self._speed - time.monotonic()


def output_channels(recording: Recording, only: str) -> list[str]:
    """Returns the channels on which the replayed processes send; each recorded frontend has its own."""
    uids = {uid for uid, _ in recording.attempts}
    for _, message in recording.inputs:
        if isinstance(message, DetokenizeMsg):
            uids.update(unpack_int64(message.uids))
    frontends = sorted({frontend_socket(block_of(uid)) for uid in uids})
    schedulers = [engine_name(engine + 1) for engine in range(recording.config.run.data_parallel)]
    return {
        "": frontends,
        "tokenizer": [*schedulers, *frontends],
        "scheduler": ["detokenizer"],
        "detokenizer": [*schedulers, *frontends],
    }[only]
