"""A request in the scheduler: its parameters, its tokens so far and its state."""

import enum
import hashlib
from array import array
from collections.abc import Mapping

import msgspec

from messages.columns import unpack_int32
from messages.ring.replies import ToDetokenizer
from messages.ring.requests import YIELDING_PRIORITY, Stamps, UserMsg
from scheduler_proc.deciding.sampling.endings import LENGTH, Ending, end_tokens_of, find_ending
from scheduler_proc.deciding.sampling.grammars import RequestGrammar
from scheduler_proc.deciding.sampling.logits_processing import LogitsProcessors, find_logits_processors
from scheduler_proc.deciding.tasks.kinds import find_task

PriorityKey = tuple[int, int]
Group = tuple[int, int]
Flow = tuple[str, int]

SALT_BYTES = 16


def salt_of(cache_salt: str) -> bytes:
    """Returns the digest of a request's salt that is part of cache keys; empty without a salt."""
    return hashlib.blake2b(cache_salt.encode(), digest_size=SALT_BYTES).digest() if cache_salt else b""


class State(enum.Enum):
    """WAITING → PREFILL → DECODE → FINISHED; a preempted request is WAITING again."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class Limits(msgspec.Struct, frozen=True):
    """The limits of the model: tokens of prompt plus output, ids in the vocabulary, and ids that end an output.

    `has_adapters`: requests may have LoRA adapters.
    """

    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    has_adapters: bool = False


class PendingReq:
    """A request independent of its row: its parameters and its tokens so far. It outlives a preemption.

    `token_ids` is the prompt followed by the output. `cached_tokens` is `None` until its first chunk is scheduled.
    `max_len` is the length, prompt included, at which it ends; `end_tokens` end it when they are sampled.
    `num_logprobs` is -1 without logprobs. `grammar` is `None` if there is none, and until it is compiled; until then
    the request gets no row. `logits_processors` is `None` if its logits are unchanged, `prompt_task` if only next
    tokens are computed from its prompt. `priority_key` orders all requests, those of one `group` take turns with
    others, and the first of a group to wait, and any that had a row, `was_in_line` (`waiting_queue.py`). Requests
    of one client and priority are a `flow`; clients get parts of steps by their `share` (`shares.py`). A request that
    `gives_way` gets few rows and few tokens of a step while there are others (`policy.py`). `packed_sampling` is its
    entry in the columns of `SamplingColumns`, set on first use.
    """

    def __init__(self, message: UserMsg, limits: Limits, now_ns: int):
        params = message.sampling_params
        self.uid = message.uid
        self.attempt = message.attempt
        self.token_ids: array[int] = unpack_int32(message.input_ids + message.output_ids)
        self.num_prompt_tokens = len(message.input_ids) // self.token_ids.itemsize
        self.spans = message.spans
        self.images = message.images
        self.sampling_params = params
        self.salt = salt_of(params.cache_salt)
        self.max_len = min(self.num_prompt_tokens + params.max_tokens, limits.max_model_len)
        self.end_tokens = end_tokens_of(params, limits.eos_token_ids)
        self.num_logprobs = -1 if params.num_logprobs is None else params.num_logprobs
        self.logits_processors: LogitsProcessors | None = find_logits_processors(
            params, limits.eos_token_ids, limits.vocab_size
        )
        self.grammar: RequestGrammar | None = None
        self.prompt_task = find_task(message)
        self.group: Group = (message.group or message.uid, params.priority)
        self.client = message.client
        self.flow: Flow = (message.client, params.priority)
        self.share = max(1, message.share)
        self.priority_key: PriorityKey = (0, 0)
        self.was_in_line = False
        self.gives_way = params.priority >= YIELDING_PRIORITY
        self.state = State.WAITING
        self.cached_tokens: int | None = None
        self.packed_sampling: Mapping[str, bytes] | None = None
        self.stamps = message.stamps
        self.queued_ns = now_ns
        self.first_scheduled_ns = 0
        self.first_token_ns = 0

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def changes_logits(self) -> bool:
        return self.logits_processors is not None or self.grammar is not None

    @property
    def needs_last_token(self) -> bool:
        """True if its logits processing depends on the last token, and not only on the number of tokens."""
        processors = self.logits_processors
        if self.grammar is not None and self.grammar.needs_last_token:
            return True
        return processors is not None and processors.needs_last_token

    @property
    def lacks_prompt_result(self) -> bool:
        """True if its prompt task is not complete."""
        return self.prompt_task is not None and not self.prompt_task.is_complete

    @property
    def num_reusable_tokens(self) -> int:
        """The number of its tokens whose K and V may be cached ones: those that its prompt task needs are computed."""
        if self.prompt_task is not None and not self.prompt_task.is_complete:
            return self.prompt_task.num_known
        return len(self.token_ids) - 1

    def pop_task_replies(self) -> list[ToDetokenizer]:
        """Returns the result of its prompt task once it is complete. Call it after each change of the task."""
        if self.prompt_task is None or not self.prompt_task.is_complete:
            return []
        return [self.prompt_task.pop_reply(self.uid, self.attempt)]

    def find_ending(self) -> Ending | None:
        """Returns how the request ends with the tokens that it has, or `None` if it continues.

        Without output it continues until its prompt task is complete. The client of a continuation with output has the
        task's result already.
        """
        if self.num_output_tokens:
            return find_ending(self.end_tokens, self.token_ids[-1], len(self.token_ids), self.max_len)
        return LENGTH if len(self.token_ids) >= self.max_len and not self.lacks_prompt_result else None

    def stamped(self, finished_ns: int) -> Stamps:
        """Returns the timeline with the scheduler's own stamps filled in."""
        return msgspec.structs.replace(
            self.stamps,
            queued_ns=self.queued_ns,
            first_scheduled_ns=self.first_scheduled_ns,
            first_token_ns=self.first_token_ns,
            finished_ns=finished_ns,
        )
