"""One accepted request: the state that a continuation needs, and the output that has not been sent to the client."""

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from frontend.requests.timeline import Timeline
from messages.columns import unpack_int32
from messages.errors import RequestError
from messages.ring.replies import PooledReply, PositionLogprobs, PromptReply, Usage, UserReply
from messages.ring.requests import AbortReason, TokenizeMsg
from runtime.logs import FIELDS


class Increment(NamedTuple):
    """The result of `pop_step` or `pop_all`: tokens, and the text that they made available."""

    text: str
    token_ids: list[int]


class Generation:
    """Filled by the registry as replies arrive, and emptied by the response that waits on `changed`.

    Steps that arrive while a response cannot write stay separate, so the client's events do not depend on this
    process's timing. A slow reader holds at most the output of its own request. `index` is the position among the
    choices of the HTTP request, which share `changed`.
    """

    def __init__(
        self,
        message: TokenizeMsg,
        request_id: str,
        *,
        index: int = 0,
        changed: asyncio.Event | None = None,
        is_part: bool = False,
    ):
        self.uid = message.uid
        self.index = index
        self.attempt = message.attempt
        self.message = message
        self.request_id = request_id
        priority = message.sampling_params.priority
        self.timeline = Timeline(message.uid, request_id, index, message.stamps.received_ns, priority)
        self.output_ids: array[int] = unpack_int32(message.output_ids)
        self.num_chars = 0
        """Characters received for `output_ids`; the text of a continuation starts after them."""
        self.final: UserReply | None = None
        self.has_listener = True
        """False after the client has left: the text is then dropped, and only the final reply matters."""
        self.abort_reason: AbortReason | None = None
        """Set by an abort, which is repeated if a process that died had it."""
        self.is_part = is_part
        """True if this is a part of a request; the client knows only the whole request."""
        self.is_sent = False
        """True once its message has been sent to the ring."""
        self.is_open = True
        """False once it has ended in the ring; for its client it may have ended before, at its deadline."""
        self.last_token_ns = 0
        """When the latest token arrived here."""
        self.first_token_ns = 0
        """When the first token arrived here, in any attempt."""
        self.changed = changed or asyncio.Event()
        self.prompt: PromptReply | None = None
        """The data about the prompt, if requested; it arrives before the first token."""
        self.pooled: PooledReply | None = None
        """The numbers computed from the prompt, if it is pooled; they arrive before the end."""
        self.prompt_usage: Usage | None = None
        """The usage of the prompt; it arrives with the first token."""
        self._steps: deque[tuple[str, int]] = deque()
        """The steps that have not been taken: text, and the length of `output_ids` after the step."""
        self._has_end_text = False
        """The last entry of `_steps` is sent with the end."""
        self.logprobs: list[PositionLogprobs] = []
        """Log-probabilities of the tokens that have not been taken; empty if not requested."""
        self.num_taken = 0
        """Number of tokens that have been taken."""
        self._num_ids_before = len(self.output_ids)

    @property
    def ended(self) -> UserReply:
        """The final reply; only for a request that has ended."""
        assert self.final is not None, f"uid {self.uid} has not ended"
        return self.final

    @property
    def log_extra(self) -> dict[str, Any]:
        """The `extra` argument for log lines about this request."""
        return {FIELDS: {"uid": self.uid, "request_id": self.request_id}}

    @property
    def has_step(self) -> bool:
        """True if `pop_step` has a step to take. The tokens of a successful final reply belong to the end."""
        return len(self._steps) > self._has_end_text

    @property
    def has_progressed(self) -> bool:
        """True if the latest attempt has produced a token."""
        return len(self.output_ids) > self._num_ids_before

    @property
    def engine(self) -> int:
        """The number of the scheduler that has the latest attempt."""
        return self.message.engine

    def place(self, engine: int) -> None:
        """Sends the next attempt to this scheduler."""
        if engine != self.message.engine:
            self.message = msgspec.structs.replace(self.message, engine=engine)
            self.timeline.engine = engine

    @property
    def is_streamed(self) -> bool:
        return self.message.sampling_params.is_streamed

    @property
    def is_unread(self) -> bool:
        """True if no client reads further output: only the end of the request in the ring matters."""
        return self.final is not None or not self.has_listener

    def next_attempt(self, *, ends_at_once: bool = False) -> TokenizeMsg:
        """Begins the next attempt: returns the message that continues the request from its output so far.

        With `ends_at_once` it may generate no further tokens, so it ends in every process without a step. Data about
        the prompt that has arrived is not requested again.
        """
        self.attempt += 1
        self._num_ids_before = len(self.output_ids)
        params = self.message.sampling_params
        if ends_at_once or self.prompt is not None:
            params = msgspec.structs.replace(params, num_prompt_logprobs=None, echo=False)
        if ends_at_once:
            params = msgspec.structs.replace(params, max_tokens=len(self.output_ids), pooling=None)
        return msgspec.structs.replace(
            self.message,
            attempt=self.attempt,
            sampling_params=params,
            output_ids=self.output_ids.tobytes(),
            num_chars_sent=self.num_chars,
        )

    def add(self, token_ids: Sequence[int], text: str) -> None:
        """Adds the tokens of one step."""
        if not self.output_ids:
            self.first_token_ns = time.monotonic_ns()
        for token_id in token_ids:  # usually one: `extend` would cost more
            self.output_ids.append(token_id)
        self.num_chars += len(text)
        if self.has_listener:
            self._steps.append((text, len(self.output_ids)))
            if self.is_streamed:
                self.changed.set()

    def add_logprob(self, logprobs: PositionLogprobs) -> None:
        """Adds the logprobs of the next one of the tokens that were added last."""
        if self.has_listener:
            self.logprobs.append(logprobs)

    def add_prompt(self, prompt: PromptReply | PooledReply) -> None:
        """Stores the data about the prompt; repeated data is ignored."""
        if not self.has_listener:
            return
        if isinstance(prompt, PooledReply):
            self.pooled = prompt
        elif self.prompt is None:
            self.prompt = prompt

    def finish(self, final: UserReply) -> None:
        """Adds the last tokens and ends the request."""
        assert self.final is None, f"uid {self.uid} has ended already"
        now_ns = time.monotonic_ns()
        self.timeline.finish(final, now_ns)
        token_ids = unpack_int32(final.token_ids)
        if token_ids and not self.first_token_ns:
            self.first_token_ns = now_ns
        self.output_ids.extend(token_ids)
        self.num_chars += len(final.incremental_output)
        if self.has_listener and (token_ids or final.incremental_output):
            self._steps.append((final.incremental_output, len(self.output_ids)))
            self._has_end_text = final.error is None
            self.logprobs.extend(final.logprobs)
        self.final = final
        self.changed.set()

    def pop_step(self) -> Increment:
        """Takes and returns the oldest step; only if `has_step`."""
        text, num_ids = self._steps.popleft()
        return Increment(text, self._take_ids(num_ids))

    def pop_all(self) -> Increment:
        """Takes and returns all remaining output, including the text of the final reply."""
        text = "".join([text for text, _ in self._steps])
        self._steps.clear()
        self._has_end_text = False
        return Increment(text, self._take_ids(len(self.output_ids)))

    def pop_logprobs(self, num_tokens: int) -> list[PositionLogprobs]:
        """Takes and returns the logprobs of the next `num_tokens` tokens, if requested."""
        taken = self.logprobs[:num_tokens]
        del self.logprobs[:num_tokens]
        return taken

    def _take_ids(self, end: int) -> list[int]:
        token_ids = self.output_ids[self.num_taken : end].tolist()
        self.num_taken = end
        return token_ids

    def abandon(self) -> None:
        """Drops the output: the client has left."""
        self.has_listener = False
        self._steps.clear()
        self._has_end_text = False
        self.logprobs.clear()
        self.changed.set()


def raise_error(index: int, generation: Generation) -> None:
    """Raises `RequestError` if an ended request has failed."""
    error = generation.ended.error
    if error is not None:
        raise RequestError(error)


async def wait_for_ends(choices: Sequence[Generation], check: Callable[[int, Generation], None] = raise_error) -> bool:
    """Returns True when all `choices`, which share `changed`, have ended, False as soon as their client has left.

    `check` is called with the index of each choice that ends, and the choice.
    """
    changed, running = choices[0].changed, list(enumerate(choices))
    while True:
        for index, choice in running:
            if choice.final is not None:
                check(index, choice)
        running = [(index, choice) for index, choice in running if choice.final is None]
        if not running:
            return True
        if not all(choice.has_listener for _, choice in running):
            return False
        changed.clear()
        await changed.wait()
