"""One accepted request: what a continuation of it needs, and what its client has not been sent yet."""

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from frontend.requests.timeline import Timeline
from messages.columns import unpack_int32
from messages.ring.replies import PositionLogprobs, PromptReply, Usage, UserReply
from messages.ring.requests import AbortReason, TokenizeMsg
from runtime.logs import FIELDS


class Increment(NamedTuple):
    """What `pop_step` or `pop_all` returns: tokens, and the text that may be shown since they have come."""

    text: str
    token_ids: list[int]


class Generation:
    """Is filled by the registry as replies arrive and emptied by the response that waits on `changed`.

    A response that cannot write for a while finds each step that has arrived meanwhile as it would have been, so what a
    client sees does not depend on when this process ran; a slow reader holds at most the output of its own request.
    `index` is its place among the choices of its HTTP request, which share `changed`.
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
        """Characters received for `output_ids`; a continuation's text begins after them."""
        self.final: UserReply | None = None
        self.has_listener = True
        """False when the client has left: then the text is dropped and only the final reply is waited for."""
        self.is_aborted = False
        """True when its end was asked for; an abort that a process took with it is repeated."""
        self.abort_reason: AbortReason = "abort"
        self.is_part = is_part
        """True where its client knows of the request alone that it is a part of."""
        self.is_sent = False
        """True from the moment at which its message has left for the ring, which knows nothing of it before."""
        self.is_remnant = False
        """True for what the ring still holds of a request whose client has got its end already."""
        self.last_token_ns = 0
        """When the latest token arrived here."""
        self.first_token_ns = 0
        """When the first token arrived here, in whichever attempt."""
        self.changed = changed or asyncio.Event()
        self.deadline_s: float | None = None
        """By `time.monotonic()`: when it is to end with what it has."""
        self.prompt: PromptReply | None = None
        """What was told about the prompt; it comes before the first token, where it is wanted."""
        self.prompt_usage: Usage | None = None
        """What the prompt took; it comes with the first token."""
        self._steps: deque[tuple[str, int]] = deque()
        """The steps that have not been taken: the text of each, and how many of `output_ids` there are with it."""
        self._has_end_text = False
        """The last one of `_steps` is told with the end."""
        self.logprobs: list[PositionLogprobs] = []
        """Those of the tokens that have not been taken; empty where none are wanted."""
        self.num_taken = 0
        """How many tokens have been taken."""
        self._num_ids_before = len(self.output_ids)

    @property
    def ended(self) -> UserReply:
        """How it has ended; only for one that has."""
        assert self.final is not None, f"uid {self.uid} has not ended"
        return self.final

    @property
    def log_extra(self) -> dict[str, Any]:
        """The `extra` of a log line about this request."""
        return {FIELDS: {"uid": self.uid, "request_id": self.request_id}}

    @property
    def has_step(self) -> bool:
        """Tells whether the tokens of a step wait for `pop_step`. Those that came with a good end are told with it."""
        return len(self._steps) > self._has_end_text

    @property
    def has_progressed(self) -> bool:
        """Tells whether the latest attempt has brought a token."""
        return len(self.output_ids) > self._num_ids_before

    @property
    def engine(self) -> int:
        """The number of the scheduler that its latest attempt was sent to."""
        return self.message.engine

    def place(self, engine: int) -> None:
        """Its next attempt goes to this scheduler."""
        if engine != self.message.engine:
            self.message = msgspec.structs.replace(self.message, engine=engine)
            self.timeline.engine = engine

    @property
    def is_streamed(self) -> bool:
        return self.message.sampling_params.is_streamed

    @property
    def is_unwanted(self) -> bool:
        """Tells whether only its end is waited for."""
        return self.is_aborted or not self.has_listener

    def next_attempt(self, *, ends_at_once: bool = False) -> TokenizeMsg:
        """Begins the next attempt: returns the message after which the request goes on where it has come to.

        With `ends_at_once` it may have no more tokens than it has, so it ends without a step in every process. What was
        told of the prompt is not asked for again.
        """
        assert self.final is None, f"uid {self.uid} has ended already"
        self.attempt += 1
        self._num_ids_before = len(self.output_ids)
        params = self.message.sampling_params
        if ends_at_once or self.prompt is not None:
            params = msgspec.structs.replace(params, num_prompt_logprobs=None, echo=False, wants_prompt_end=False)
        if ends_at_once:
            params = msgspec.structs.replace(params, max_tokens=len(self.output_ids))
        return msgspec.structs.replace(
            self.message,
            attempt=self.attempt,
            sampling_params=params,
            output_ids=self.output_ids.tobytes(),
            num_chars_sent=self.num_chars,
        )

    def add(self, token_ids: Sequence[int], text: str) -> None:
        """Takes the tokens of one step."""
        if not self.output_ids:
            self.first_token_ns = time.monotonic_ns()
        for token_id in token_ids:  # as a rule one: `extend` would cost more
            self.output_ids.append(token_id)
        self.num_chars += len(text)
        if self.has_listener:
            self._steps.append((text, len(self.output_ids)))
            if self.is_streamed:
                self.changed.set()

    def add_logprob(self, logprobs: PositionLogprobs) -> None:
        """Takes the logprobs of the next token, of those that were added last."""
        if self.has_listener:
            self.logprobs.append(logprobs)

    def add_prompt(self, prompt: PromptReply) -> None:
        """Takes what is told about the prompt; a second time it is nothing new."""
        if self.prompt is None and self.has_listener:
            self.prompt = prompt

    def finish(self, final: UserReply) -> None:
        """Takes the last tokens and the end; nothing may follow."""
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
        """Returns the oldest step that has not been taken; `has_step` tells whether there is one."""
        text, num_ids = self._steps.popleft()
        return Increment(text, self._take_ids(num_ids))

    def pop_all(self) -> Increment:
        """Returns all that has not been taken, the end's text included."""
        text = "".join([text for text, _ in self._steps])
        self._steps.clear()
        self._has_end_text = False
        return Increment(text, self._take_ids(len(self.output_ids)))

    def pop_logprobs(self, num_tokens: int) -> list[PositionLogprobs]:
        """Returns the logprobs of the next `num_tokens` tokens, if they are wanted."""
        taken = self.logprobs[:num_tokens]
        del self.logprobs[:num_tokens]
        return taken

    def _take_ids(self, end: int) -> list[int]:
        token_ids = self.output_ids[self.num_taken : end].tolist()
        self.num_taken = end
        return token_ids

    def make_remnant(self) -> "Generation":
        """Returns an entry that waits, in place of this one, for the ring to end the request; nobody listens to it."""
        remnant = Generation(self.message, self.request_id)
        remnant.timeline.engine = self.engine
        remnant.attempt = self.attempt
        remnant.output_ids = self.output_ids[:]
        remnant.num_chars = self.num_chars
        remnant._num_ids_before = self._num_ids_before
        remnant.is_aborted, remnant.abort_reason = self.is_aborted, self.abort_reason
        remnant.has_listener = False
        remnant.is_remnant = remnant.is_sent = True
        return remnant

    def abandon(self) -> None:
        """Nobody listens from now on."""
        self.has_listener = False
        self._steps.clear()
        self._has_end_text = False
        self.logprobs.clear()
        self.changed.set()

    async def wait_end(self) -> UserReply | None:
        """Returns the final reply, or `None` as soon as the client has left."""
        while self.final is None and self.has_listener:
            self.changed.clear()
            await self.changed.wait()
        return self.final
