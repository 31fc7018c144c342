"""The admission limits: whether a request may enter now, and when a refused client should come back."""

import math
import time
from collections import Counter, deque

from frontend.errors import UnavailableError
from frontend.links.processes import ProcessView
from messages.columns import num_int32
from messages.config.server import SchedulingConfig
from messages.ring.requests import ChatPrompt

NUM_MEASURED = 32
"""Latest endings from which the completion rate is taken."""

MAX_RETRY_S = 60

BYTES_PER_TOKEN = 4
"""Of UTF-8, by which the length of a text that has not been tokenized is estimated; typical of English."""


class Admission:
    """At most `max_num_seqs` running of each engine and `max_queued_requests` waiting requests are open, none while
    draining.

    With `max_queued_tokens`, prompts that have no token yet have together at most so many; a single one may always
    wait, however long it is. `num_refused` counts refusals by their code. Where there are several frontends, each has
    an equal share of every limit, at least one, so that together they keep to it without asking each other.
    """

    def __init__(
        self, scheduling: SchedulingConfig, processes: ProcessView, num_workers: int = 1, restart_hold_s: float = 0.0
    ):
        tokens = scheduling.max_queued_tokens
        self._num_workers = num_workers
        self._scheduling = scheduling
        self._max_queued_tokens = None if tokens is None else max(1, tokens // num_workers)
        self._processes = processes
        self._restart_hold_s = restart_hold_s
        self._ended_s: deque[float] = deque(maxlen=NUM_MEASURED)
        self.is_draining = False
        self.num_refused: Counter[str] = Counter()

    @property
    def _num_rows(self) -> int:
        return self._scheduling.max_num_seqs * self._processes.num_engines

    @property
    def limit(self) -> int:
        """Requests that may be open in this process."""
        return max(1, (self._num_rows + self._scheduling.max_queued_requests) // self._num_workers)

    @property
    def limits_tokens(self) -> bool:
        """Tells whether `check_tokens` needs to know what waits."""
        return self._max_queued_tokens is not None

    def check_open(self) -> None:
        """Raises `UnavailableError` while a request could not go on its way at once."""
        self._check_draining()
        self._processes.check_ready()

    def check(self, num_open: int) -> None:
        """Raises `UnavailableError` where one request more than `num_open` may not enter, nor wait for a process."""
        try:
            self._check_draining()
            self._processes.check_ready(self._restart_hold_s)
            if num_open >= self.limit:
                where = "" if self._num_workers == 1 else " in this frontend, its share"
                raise UnavailableError(
                    f"the server is full: {num_open} requests are open{where} "
                    "(--max-num-seqs and --max-queued-requests)",
                    "queue_full",
                    self.retry_after_s(num_open),
                )
        except UnavailableError as error:
            self.note_refusal(error)
            raise

    def _check_draining(self) -> None:
        if self.is_draining:
            raise UnavailableError("the server is draining and takes no new requests", "draining")

    def check_tokens(self, num_waiting: int, num_new: int, num_open: int) -> None:
        """Raises `UnavailableError` where a prompt of `num_new` tokens may not wait beside `num_waiting` others."""
        limit = self._max_queued_tokens
        if limit is not None and num_waiting and num_waiting + num_new > limit:
            error = UnavailableError(
                f"the queue is full: about {num_waiting} prompt tokens wait, this request has about {num_new}, and the "
                f"limit is {limit} (--max-queued-tokens)",
                "queue_full",
                self.retry_after_s(num_open),
            )
            self.note_refusal(error)
            raise error

    def note_refusal(self, error: UnavailableError) -> None:
        self.num_refused[error.info.code or "unavailable"] += 1

    def note_end(self) -> None:
        """Counts a request that has ended."""
        self._ended_s.append(time.monotonic())

    def retry_after_s(self, num_open: int) -> int:
        """Returns in how many seconds what waits now will have got a row, at the rate of the latest endings."""
        if len(self._ended_s) < 2:
            return 1
        span_s = max(time.monotonic() - self._ended_s[0], 1e-3)
        rate = (len(self._ended_s) - 1) / span_s
        return min(max(1, math.ceil((num_open - max(1, self._num_rows // self._num_workers)) / rate)), MAX_RETRY_S)


def estimate_tokens(prompt_text: str | None, prompt_ids: bytes, chat: ChatPrompt | None) -> int:
    """Returns how many tokens a prompt has: exact for int32 `prompt_ids`, else by the length of its text."""
    if chat is not None:
        return 1 + len(chat.messages) // BYTES_PER_TOKEN
    if prompt_text is not None:
        num_bytes = len(prompt_text) if prompt_text.isascii() else len(prompt_text.encode(errors="replace"))
        return 1 + num_bytes // BYTES_PER_TOKEN
    return num_int32(prompt_ids)
