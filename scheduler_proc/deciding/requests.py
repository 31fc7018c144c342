"""A request in the scheduler: what was asked and the tokens so far and, while it runs, its place in the KV cache."""

import enum
from array import array
from collections.abc import Mapping

import msgspec

from messages.columns import INT32, unpack_int32
from messages.ring.replies import ToDetokenizer
from messages.ring.requests import YIELDING_PRIORITY, Stamps, UserMsg
from scheduler_proc.deciding.drafting.continuations import Continuation
from scheduler_proc.deciding.drafting.draft_lengths import FORCED, AcceptanceRate
from scheduler_proc.deciding.drafting.ngrams import NgramMatch
from scheduler_proc.deciding.pages.radix import Node, salt_of
from scheduler_proc.deciding.rows.endings import LENGTH, Ending, end_tokens_of, find_ending
from scheduler_proc.deciding.rows.grammars import RequestGrammar
from scheduler_proc.deciding.rows.logits_processing import LogitsProcessors, find_logits_processors
from scheduler_proc.deciding.rows.wanted import Wanted
from scheduler_proc.deciding.tasks.prompt_logprobs import PromptLogprobsTask

PriorityKey = tuple[int, int]

NO_IDS: "array[int]" = array(INT32)


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
    `max_len` is the length, prompt included, at which it ends; `end_tokens` end it when they are sampled.
    `num_logprobs` is -1 without logprobs. `grammar` is `None` if there is none, and until it is compiled; before that
    the request gets no row. `logits_processors` is `None` if its logits are unchanged, `prompt_task` if nothing else is
    computed from its prompt. `priority_key` orders all requests (`waiting_queue.py`). A request that `gives_way` gets
    few rows and tokens of a step while there are others (`policy.py`).
    `draft_rate` is about the tokens of a draft model, `forced_rate` about those that its grammar forces. `match` is an
    earlier place of its last tokens, `continuation` the tokens that followed them in other requests. Both are set on
    first use, and not used while it has fewer than `no_draft_until` tokens. `packed_sampling` is its entry in the
    columns of `SamplingColumns`, set on first use.
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
        self.prompt_task: PromptLogprobsTask | None = None
        if params.num_prompt_logprobs is not None:
            prompt_ids = self.token_ids[: self.num_prompt_tokens]
            self.prompt_task = PromptLogprobsTask(prompt_ids, params.num_prompt_logprobs)
        self.priority_key: PriorityKey = (0, 0)
        self.gives_way = params.priority >= YIELDING_PRIORITY
        self.state = State.WAITING
        self.cached_tokens: int | None = None
        self.draft_rate = AcceptanceRate()
        self.forced_rate = AcceptanceRate(FORCED)
        self.match: NgramMatch | None = None
        self.continuation: Continuation | None = None
        self.no_draft_until = 0
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
        """Tells whether some of what is wanted of its prompt is not known yet."""
        return self.prompt_task is not None and not self.prompt_task.is_complete

    @property
    def num_reusable_tokens(self) -> int:
        """How many of its tokens may be taken from the cache: those of which anything is wanted must be computed."""
        if self.prompt_task is not None and not self.prompt_task.is_complete:
            return self.prompt_task.num_known
        return len(self.token_ids) - 1

    def take_prompt_replies(self) -> list[ToDetokenizer]:
        """Returns what is told of its prompt: nothing before all is known. Called when that may have changed."""
        if self.prompt_task is None or not self.prompt_task.is_complete:
            return []
        return [self.prompt_task.take_reply(self.uid, self.attempt)]

    def find_ending(self) -> Ending | None:
        """Returns how the request ends with the tokens that it has, or `None` where it goes on.

        One without output goes on until all that is wanted of its prompt is known; the client of a continuation with
        output has it already.
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
    """A running request: a `PendingReq` with its place in the KV cache (the cache alone changes the place).

    `pages` hold its tokens in order; the first `num_shared_pages` belong to the radix tree and end at `node`.
    Of the first `num_drafted` tokens the draft model has K and V, and behind them those of `drafted_ids`, which may be
    wrong (`draft_model.py` alone changes both).
    """

    def __init__(self, pending: PendingReq, root: Node):
        self.pending = pending
        self.uid = pending.uid
        self.token_ids = pending.token_ids
        self.pages: list[int] = []
        self.node = root
        self.num_shared_pages = 0
        self.num_drafted = 0
        self.drafted_ids: array[int] = NO_IDS
        self._num_prefilled = 0

    def twin(self, token_ids: "array[int]") -> "Req":
        """Returns one on the same pages that has these tokens instead."""
        twin = Req(self.pending, self.node)
        twin.token_ids, twin.pages = token_ids, self.pages
        return twin

    def wanted_in_prefill(self, start: int, end: int) -> Wanted:
        """Returns what the prompt's tokens `start` to `end` (exclusive) want.

        A next token is sampled after the prompt's last one, where the request may have one.
        """
        task = self.pending.prompt_task
        wanted = Wanted() if task is None else task.wanted(start, end)
        if not end == len(self.token_ids) < self.pending.max_len:
            return wanted
        return wanted._replace(num_tokens=1, num_logprobs=int(self.pending.num_logprobs >= 0))

    def wanted_in_decode(self, num_drafts: int = 0) -> Wanted:
        """Returns what the row wants in DECODE with so many draft tokens."""
        num_tokens = 1 + num_drafts
        return Wanted(num_tokens, num_tokens if self.pending.num_logprobs >= 0 else 0)

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
