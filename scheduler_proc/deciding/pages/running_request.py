"""A request that has a row: its place in the KV cache."""

from array import array

from scheduler_proc.deciding.pages.page_keys import page_key
from scheduler_proc.deciding.pages.radix import Node
from scheduler_proc.deciding.requests import PendingReq, State
from scheduler_proc.deciding.sampling.output_counts import OutputCounts

NO_STATE = -1
"""No state slot."""


class Req:
    """A running request: a `PendingReq` with its place in the KV cache, which only the cache changes.

    `pages` hold its tokens in order; the first `num_shared_pages` belong to the radix tree and end at `node`. While it
    `is_loading`, pages after these are filled from a lower tier (`page_tiers.py`). From `window_start` on it uses the
    window pages of its pages (`window_pages.py`); `num_matched_pages` is the part of its prompt that was cached last.
    `state_slot`, `spare_slot`, `state_source` and `state_page` are its recurrent state (`state_slots.py`); the latest
    checkpoint of its output is at `rolling_page`.
    """

    def __init__(self, pending: PendingReq, root: Node):
        self.pending = pending
        self.uid = pending.uid
        self.token_ids = pending.token_ids
        self.pages: list[int] = []
        self.node = root
        self.num_shared_pages = 0
        self.is_loading = False
        self.window_start = 0
        self.num_matched_pages = 0
        self.window_table: tuple[tuple[int, int, int] | None, bytes, int] = None, b"", 0
        """The row's table of window pages in its latest step in DECODE, after what it depends on."""
        self.state_slot = self.spare_slot = self.state_source = NO_STATE
        self.state_page: int | None = None
        self.rolling_page: int | None = None
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
