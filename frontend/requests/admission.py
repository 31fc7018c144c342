"""Admission limits: whether a request may enter now, and when a refused client should retry."""

import math
import time
from collections import Counter, deque
from collections.abc import Sequence

from frontend.errors import UnavailableError
from frontend.links.processes import ProcessView
from messages.columns import num_int32
from messages.config.server import SchedulingConfig
from messages.ring.images import ImageInput
from messages.ring.requests import ChatPrompt

NUM_MEASURED = 32
"""Number of latest completions that give the completion rate."""

MAX_RETRY_S = 60

PART_FOR_OTHERS = 8
"""1 in this number of the open requests: for each client with fewer, and for all such clients of a full server."""

PIXELS_PER_TOKEN = 32 * 32
MIN_IMAGE_TOKENS, MAX_IMAGE_TOKENS = 64, 4096
"""For estimates: most models have numbers between these."""

BYTES_PER_TOKEN = 4
"""UTF-8 bytes per token, to estimate the length of text before tokenization; typical of English."""


class Admission:
    """Admits at most `max_num_seqs` running requests per engine and `max_queued_requests` waiting ones.

    With `max_queued_tokens`, prompts without an output token may have that many tokens in total; a single prompt may
    always wait, whatever its length. No request enters while draining. `num_refused` counts refusals by code. Each of
    several frontends has an equal share of every limit, at least one, so that they need no coordination.
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
        """Maximum open requests in this process."""
        return max(1, (self._num_rows + self._scheduling.max_queued_requests) // self._num_workers)

    @property
    def limits_tokens(self) -> bool:
        """True if `check_tokens` has a limit to enforce."""
        return self._max_queued_tokens is not None

    def check_open(self) -> None:
        """Raises `UnavailableError` if a request could not be sent now."""
        self._check_draining()
        self._processes.check_ready()

    def check(self, num_open: int, num_own: int | None = None) -> None:
        """Raises `UnavailableError` if, next to `num_open` requests, another may neither enter nor wait.

        `num_own` of them are the client's, by default all. If they are few, it may enter although others fill the
        server; a part of the limit is added for such clients together.
        """
        try:
            self._check_draining()
            self._processes.check_ready(self._restart_hold_s)
            spare = self.limit // PART_FOR_OTHERS
            num_most = self.limit + (spare if num_own is not None and num_own < spare else 0)
            if num_open >= num_most:
                where = "" if self._num_workers == 1 else " in this frontend, its share"
                raise UnavailableError(
                    f"the server is full: {num_open} requests are open{where} "
                    "(--max-num-seqs and --max-queued-requests)",
                    "queue_full",
                    self.retry_after_s(num_open),
                )
        except UnavailableError as error:
            self.record_refusal(error)
            raise

    def _check_draining(self) -> None:
        if self.is_draining:
            raise UnavailableError("the server is draining and accepts no new requests", "draining")

    def check_tokens(self, num_waiting: int, num_new: int, num_open: int) -> None:
        """Raises `UnavailableError` if a prompt of `num_new` tokens may not join `num_waiting` waiting tokens."""
        limit = self._max_queued_tokens
        if limit is not None and num_waiting and num_waiting + num_new > limit:
            error = UnavailableError(
                f"the queue is full: about {num_waiting} prompt tokens wait, this request has about {num_new}, and the "
                f"limit is {limit} (--max-queued-tokens)",
                "queue_full",
                self.retry_after_s(num_open),
            )
            self.record_refusal(error)
            raise error

    def record_refusal(self, error: UnavailableError) -> None:
        self.num_refused[error.info.code or "unavailable"] += 1

    def record_end(self) -> None:
        """Counts a request that has ended."""
        self._ended_s.append(time.monotonic())

    def retry_after_s(self, num_open: int) -> int:
        """Returns the seconds until the requests that wait now will have a row, at the latest completion rate."""
        if len(self._ended_s) < 2:
            return 1
        span_s = max(time.monotonic() - self._ended_s[0], 1e-3)
        rate = (len(self._ended_s) - 1) / span_s
        return min(max(1, math.ceil((num_open - max(1, self._num_rows // self._num_workers)) / rate)), MAX_RETRY_S)


def estimate_tokens(
    prompt_text: str | None, prompt_ids: bytes, chat: ChatPrompt | None, images: Sequence[ImageInput] = ()
) -> int:
    """Returns the number of tokens in a prompt: exact for int32 `prompt_ids`, otherwise estimated from its length."""
    if images:
        return estimate_tokens(prompt_text, prompt_ids, chat) + sum(map(_estimate_image, images))
    if chat is not None:
        return 1 + len(chat.messages) // BYTES_PER_TOKEN
    if prompt_text is not None:
        num_bytes = len(prompt_text) if prompt_text.isascii() else len(prompt_text.encode(errors="replace"))
        return 1 + num_bytes // BYTES_PER_TOKEN
    return num_int32(prompt_ids)


def _estimate_image(image: ImageInput) -> int:
    num_pixels = max(image.width * image.height, image.min_pixels)
    num_tokens = min(num_pixels, image.max_pixels or num_pixels) // PIXELS_PER_TOKEN
    return min(max(num_tokens, MIN_IMAGE_TOKENS), image.max_tokens or MAX_IMAGE_TOKENS, MAX_IMAGE_TOKENS)
