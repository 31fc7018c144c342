"""A request in the scheduler: what was asked and the tokens so far and, while it runs, its place in the KV cache."""

import enum
from array import array
from collections.abc import Mapping

import msgspec

from extras.batches.config import BATCH_PRIORITY
from messages.columns import unpack_int32
from messages.ring.replies import ToDetokenizer
from messages.ring.requests import Stamps, UserMsg
from scheduler_proc.deciding.drafting.draft_state import DraftState
from scheduler_proc.deciding.pages.radix import Node, salt_of
from scheduler_proc.deciding.rows.endings import LENGTH, Ending, end_tokens_of, find_ending
from scheduler_proc.deciding.rows.grammars import RequestGrammar
from scheduler_proc.deciding.rows.logits_processing import LogitsProcessors, find_logits_processors
from scheduler_proc.deciding.rows.output_counts import OutputCounts
from scheduler_proc.deciding.tasks.kinds import find_task

PriorityKey = tuple[int, int]


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
    """A request independent of its row: its parameters and its tokens so far. It outlives a preemption.

    `token_ids` is the prompt followed by the output. `cached_tokens` is `None` until its first chunk is scheduled.
    `max_len` is the length, prompt included, at which it ends; `end_tokens` end it when they are sampled.
    `num_logprobs` is -1 without logprobs. `grammar` is `None` if there is none, and until it is compiled; until then
    the request gets no row. `logits_processors` is `None` if its logits are unchanged, `prompt_task` if only next
    tokens are computed from its prompt. `priority_key` orders all requests (`waiting_queue.py`). A request that
    `gives_way` gets few rows and few tokens of a step while there are others (`policy.py`). `packed_sampling` is its
    entry in the columns of `SamplingColumns`, set on first use.
    """

    def __init__(self, message: UserMsg, limits: Limits, now_ns: int):
        params = message.sampling_params
        self.uid = message.uid
        self.attempt = message.attempt
        self.token_ids: array[int] = unpack_int32(message.input_ids + message.output_ids)
        self.num_prompt_tokens = len(message.input_ids) // self.token_ids.itemsize
        self.sampling_params = params
        self.salt = salt_of(params.cache_salt)
        self.max_len = min(self.num_prompt_tokens + params.max_tokens, limits.max_model_len)
        self.end_tokens = end_tokens_of(params, limits.eos_token_ids)
        self.num_logprobs = -1 if params.num_logprobs is None else params.num_logprobs
        self.logits_processors: LogitsProcessors | None = find_logits_processors(
            params, limits.eos_token_ids, limits.vocab_size
        )
        self.grammar: RequestGrammar | None = None
        self.prompt_task = find_task(params, self.token_ids, self.num_prompt_tokens)
        self.priority_key: PriorityKey = (0, 0)
        self.gives_way = params.priority >= BATCH_PRIORITY
        self.state = State.WAITING
        self.cached_tokens: int | None = None
        self.draft = DraftState()
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
        """Tells whether what it changes depends on which tokens there are, and not only on how many."""
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


class Req:
    """A running request: a `PendingReq` with its place in the KV cache, which only the cache changes.

    `pages` hold its tokens in order; the first `num_shared_pages` belong to the radix tree and end at `node`. While it
    `is_loading`, pages after these are filled from a lower tier (`page_tiers.py`).
    """

    def __init__(self, pending: PendingReq, root: Node):
        self.pending = pending
        self.uid = pending.uid
        self.token_ids = pending.token_ids
        self.pages: list[int] = []
        self.node = root
        self.num_shared_pages = 0
        self.is_loading = False
        self._num_prefilled = 0

    def twin(self, token_ids: "array[int]") -> "Req":
        """Returns a request on the same pages with other tokens."""
        twin = Req(self.pending, self.node)
        twin.token_ids, twin.pages = token_ids, self.pages
        return twin

    def outputs_in_prefill(self, start: int, end: int) -> OutputCounts:
        """Returns the outputs of a chunk of the prompt's tokens `start` to `end` (exclusive).

        A next token is sampled after the prompt's last one, unless the request must not have one.
        """
        task = self.pending.prompt_task
        num_task = 0 if task is None else task.count(start, end)
        num_tokens = int(end == len(self.token_ids) < self.pending.max_len)
        return OutputCounts(num_tokens, num_tokens if self.pending.num_logprobs >= 0 else 0, num_task)

    def outputs_in_decode(self, num_drafts: int = 0) -> OutputCounts:
        """Returns the outputs of a row in DECODE with `num_drafts` draft tokens."""
        num_tokens = 1 + num_drafts
        return OutputCounts(num_tokens, num_tokens if self.pending.num_logprobs >= 0 else 0)

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
