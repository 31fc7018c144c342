"""A request that has a row: its place in the KV cache, and its chunks."""

from array import array
from typing import NamedTuple, Protocol, TypeVar

from messages.columns import INT32
from scheduler_proc.deciding.pages.page_keys import page_key
from scheduler_proc.deciding.pages.radix import Node
from scheduler_proc.deciding.requests import PendingReq, State
from scheduler_proc.deciding.sampling.output_counts import OutputCounts

NO_DRAFTS: "array[int]" = array(INT32)

T = TypeVar("T")


class Req:
    """A running request: a `PendingReq` with its place in the KV cache, which only the cache changes.

    `pages` hold its tokens in order; the first `num_shared_pages` belong to the radix tree and end at `node`.
    `num_matched_pages` is the part of its prompt that was cached last, whether or not it could be used.
    """

    def __init__(self, pending: PendingReq, root: Node):
        self.pending = pending
        self.uid = pending.uid
        self.token_ids = pending.token_ids
        self.pages: list[int] = []
        self.node = root
        self.num_shared_pages = 0
        self.num_matched_pages = 0
        self._num_prefilled = 0

    def twin(self, token_ids: "array[int]") -> "Req":
        """Returns a request on the same pages with other tokens."""
        twin = Req(self.pending, self.node)
        twin.token_ids, twin.pages = token_ids, self.pages
        return twin

    def page_key(self, start: int, end: int, page_size: int) -> bytes:
        """Returns the keys of its pages with the tokens `start`, the first of a page, to `end` (exclusive)."""
        return page_key(self.token_ids, self.pending.spans, start, end, page_size)

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


class DraftRate(Protocol):
    """Counts accepted draft tokens, as `drafting/draft_state.py` does."""

    def add(self, num_drafts: int, num_accepted: int) -> None: ...


class Chunk(NamedTuple):
    """Several tokens of a request as a row of one step: its tokens `start` to `end` (exclusive), then `draft_ids`.

    All tokens before `start` are computed before the step. `draft_rate`, if given, counts accepted draft tokens.
    """

    req: Req
    start: int
    end: int
    requested: OutputCounts
    draft_ids: "array[int]" = NO_DRAFTS
    draft_rate: DraftRate | None = None


class Records(dict[int, T]):
    """Records of requests by uid."""

    def __init__(self) -> None:
        super().__init__()
        self._reqs: list[Req] = []
        self._records: list[T] = []

    def of(self, reqs: list[Req]) -> list[T]:
        """Returns the records of these requests; faster while they are the same as at the last call."""
        if reqs != self._reqs:
            self._reqs, self._records = reqs[:], [self[req.uid] for req in reqs]
        return self._records
