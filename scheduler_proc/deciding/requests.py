"""A request in the scheduler: what was asked and the tokens so far and, while it runs, its place in the KV cache."""

import enum
from array import array

import msgspec

from messages.columns import pack_int32, pack_int64, unpack_int32
from messages.errors import ErrorInfo, RequestError, bad_request
from messages.requests import Stamps, UserMsg
from scheduler_proc.deciding.radix import Node

UINT32 = "I"

NO_TOKEN = -1
"""The next token of a row whose logits were not finite."""


class State(enum.Enum):
    """WAITING → PREFILL → DECODE → FINISHED; a preempted request is WAITING again."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class Limits(msgspec.Struct, frozen=True):
    """What the model allows: tokens of prompt plus output, ids in the vocabulary, ids that end an output."""

    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()


class PendingReq:
    """A request as it waits for a row: what was asked, and its tokens so far. It outlives a preemption.

    `token_ids` is the prompt followed by the output. `cached_tokens` is `None` until its first chunk is scheduled.
    `max_len` is the length, prompt included, at which it ends. `end_ids` end it when sampled; NO_TOKEN is one of them.
    """

    __slots__ = (
        "attempt",
        "cached_tokens",
        "end_ids",
        "first_scheduled_ns",
        "first_token_ns",
        "max_len",
        "num_prompt_tokens",
        "queued_ns",
        "salt",
        "sampling_params",
        "stamps",
        "state",
        "token_ids",
        "uid",
    )

    def __init__(self, message: UserMsg, limits: Limits, now_ns: int):
        params = message.sampling_params
        self.uid = message.uid
        self.attempt = message.attempt
        self.token_ids: array[int] = unpack_int32(message.input_ids + message.output_ids)
        self.num_prompt_tokens = len(message.input_ids) // self.token_ids.itemsize
        self.sampling_params = params
        self.salt = params.cache_salt.encode()
        self.max_len = min(self.num_prompt_tokens + params.max_tokens, limits.max_model_len)
        eos_ids = () if params.ignore_eos else limits.eos_token_ids
        self.end_ids = frozenset((NO_TOKEN, *eos_ids, *params.stop_token_ids))
        self.state = State.WAITING
        self.cached_tokens: int | None = None
        self.stamps = message.stamps
        self.queued_ns = now_ns
        self.first_scheduled_ns = 0
        self.first_token_ns = 0

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def stamped(self, finished_ns: int) -> Stamps:
        """Returns the timeline with the scheduler's own stamps filled in."""
        return msgspec.structs.replace(
            self.stamps,
            queued_ns=self.queued_ns,
            first_scheduled_ns=self.first_scheduled_ns,
            first_token_ns=self.first_token_ns,
            finished_ns=finished_ns,
        )


class Req:
    """A running request: a `PendingReq` with its place in the KV cache (the cache alone changes the place).

    `pages` hold its tokens in order; the first `num_shared_pages` belong to the radix tree and end at `node`.
    """

    __slots__ = ("_num_prefilled", "node", "num_shared_pages", "pages", "pending", "token_ids", "uid")

    def __init__(self, pending: PendingReq, root: Node):
        self.pending = pending
        self.uid = pending.uid
        self.token_ids = pending.token_ids
        self.pages: list[int] = []
        self.node = root
        self.num_shared_pages = 0
        self._num_prefilled = 0

    @property
    def state(self) -> State:
        return self.pending.state

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose K and V are in the cache. In DECODE that is all but the last, so no step has to count them."""
        return len(self.token_ids) - 1 if self.pending.state is State.DECODE else self._num_prefilled

    @num_computed_tokens.setter
    def num_computed_tokens(self, value: int) -> None:
        assert self.pending.state is State.PREFILL
        self._num_prefilled = value


def check_possible(message: UserMsg, limits: Limits) -> None:
    """Raises `RequestError` for a request that no step could run, so that it cannot take others down with it."""
    params = message.sampling_params
    try:
        num_prompt_tokens = len(unpack_int32(message.input_ids))
        unpack_int32(message.output_ids)
        pack_int64((message.uid, params.seed))
        pack_int32((message.attempt, params.top_k))
    except (ValueError, OverflowError) as error:
        raise bad_request(f"the request cannot be read: {error}") from None
    if not num_prompt_tokens:
        raise bad_request("the prompt is empty", param="prompt")
    if num_prompt_tokens >= limits.max_model_len:
        raise RequestError(
            ErrorInfo(
                status=400,
                message=f"maximum context length is {limits.max_model_len} tokens, "
                f"the request has {num_prompt_tokens} and needs room for one more",
                param="prompt",
                code="context_length_exceeded",
            )
        )
    # As unsigned numbers negative ids are large ones, so that one pass finds both.
    if max(array(UINT32, message.input_ids + message.output_ids)) >= limits.vocab_size:
        raise bad_request(f"the prompt holds token ids outside [0, {limits.vocab_size})", param="prompt")
