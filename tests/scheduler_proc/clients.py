"""A client and a detokenizer in one: sends requests to a scheduler and keeps what comes back, strictly."""

from collections.abc import Sequence

from messages.columns import pack_int32, runs_of, unpack_float32, unpack_int32, unpack_int64
from messages.ring.encodings import EncoderStarted
from messages.ring.replies import (
    CacheFlushed,
    DetokenizeMsg,
    FinishedRow,
    OpenStream,
    PooledReply,
    PromptLogprobs,
    ToDetokenizer,
    Usage,
)
from messages.ring.requests import DropBefore, SamplingParams, Stamps, ToScheduler, UserMsg
from messages.ring.steps import Batch, LogprobColumns
from scheduler_proc.deciding.adapter_slots import AdapterSlots
from scheduler_proc.deciding.drafting.draft_model import run_draft_steps
from scheduler_proc.deciding.drafting.drafts import Drafter
from scheduler_proc.deciding.pages.open_cache import open_cache
from scheduler_proc.deciding.placed_spans import PlacedSpans
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding.step_plan import Budget
from tests.scheduler_proc.simulated_drafter import plan_all_drafts
from tests.scheduler_proc.simulated_grammar import SimulatedGrammars
from tests.scheduler_proc.simulated_runner import Logprob, SimulatedPages, SimulatedRunner, unpack_logprobs
from tests.scheduler_proc.simulated_spans import SimulatedEncoders, SimulatedSpanRows
from tests.scheduler_proc.simulated_store import SimulatedStore

VOCAB_SIZE = 50
EOS = 7


def user_msg(
    uid: int,
    prompt: Sequence[int],
    max_tokens: int = 8,
    attempt: int = 0,
    output_ids: Sequence[int] = (),
    **params: object,
) -> UserMsg:
    """Returns a greedy request unless `params` say otherwise."""
    sampling = SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, **params})
    return UserMsg(uid, attempt, pack_int32(prompt), sampling, Stamps(received_ns=1), pack_int32(output_ids))


class Inbox:
    """What the detokenizer knows of each attempt; asserts that nothing comes before its opening or after its end."""

    def __init__(self) -> None:
        self.opened: dict[tuple[int, int], OpenStream] = {}
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.finished: dict[tuple[int, int], FinishedRow] = {}
        self.prefilled: dict[tuple[int, int], Usage] = {}
        self.logprobs: dict[tuple[int, int], list[Logprob]] = {}
        self.prompt_logprobs: dict[tuple[int, int], list[Logprob]] = {}
        self.pooled: dict[tuple[int, int], list[float]] = {}
        self.flushed: list[CacheFlushed] = []
        self.step_ids: list[int] = []
        self.dropped_before = 0

    def take(self, messages: Sequence[ToDetokenizer]) -> None:
        for message in messages:
            match message:
                case OpenStream():
                    key = (message.uid, message.attempt)
                    assert key not in self.opened, "opened twice"
                    self.opened[key] = message
                    self.tokens[key] = []
                    self.logprobs[key] = []
                case PromptLogprobs(uid, attempt, columns):
                    self._take_prompt_logprobs((uid, attempt), columns)
                case PooledReply(uid, attempt, values):
                    assert (uid, attempt) not in {**self.pooled, **self.finished}, "vectors twice, or after the end"
                    self.pooled[uid, attempt] = unpack_float32(values).tolist()
                case CacheFlushed():
                    self.flushed.append(message)
                case DetokenizeMsg():
                    self._take_step(message)
                case DropBefore(uid):
                    self.dropped_before = uid

    def _take_prompt_logprobs(self, key: tuple[int, int], columns: LogprobColumns) -> None:
        assert key not in self.prompt_logprobs, "prompt logprobs twice"
        assert not self.tokens[key], "prompt logprobs after the first token"
        assert key not in self.finished, "prompt logprobs after the end"
        num_top = self.opened[key].num_prompt_logprobs
        assert num_top == columns.num_top, "not as many alternatives as are wanted"
        self.prompt_logprobs[key] = unpack_logprobs(columns, num_top)

    def _take_step(self, message: DetokenizeMsg) -> None:
        uids, attempts = unpack_int64(message.uids), unpack_int32(message.attempts)
        for uid, attempt, token_ids in zip(uids, attempts, runs_of(message.token_ids, message.num_tokens), strict=True):
            assert (uid, attempt) not in self.finished, "a token after the end"
            assert len(token_ids) > 0
            assert min(token_ids) >= 0
            opened = self.opened[uid, attempt]
            assert opened.num_prompt_logprobs is None or (uid, attempt) in self.prompt_logprobs, (
                "a token before the prompt logprobs"
            )
            self.tokens[uid, attempt].extend(token_ids)
            self.step_ids.append(message.step_id)
        for row in message.prefilled:
            assert row.uid in uids, "prefilled without a token"
            self.prefilled[row.uid, row.attempt] = row.usage
        self._take_logprobs(message)
        for row in message.finished:
            key = (row.uid, row.attempt)
            assert key in self.opened, "ended before it was opened"
            assert key not in self.finished, "ended twice"
            self.finished[key] = row

    def _take_logprobs(self, message: DetokenizeMsg) -> None:
        entries = list(unpack_int32(message.logprob_entries))
        assert entries == sorted(set(entries))
        assert (message.logprobs is None) == (not entries)
        if message.logprobs is not None:
            uids, attempts = unpack_int64(message.uids), unpack_int32(message.attempts)
            runs = list(runs_of(message.token_ids, message.num_tokens))
            rows = [row for row, run in enumerate(runs) for _ in run]
            keys = [(uids[rows[entry]], attempts[rows[entry]]) for entry in entries]
            all_logprobs = unpack_logprobs(message.logprobs, message.logprobs.num_top)
            for key, (token_id, logprob, top) in zip(keys, all_logprobs, strict=True):
                num_top = self.opened[key].num_logprobs
                assert num_top is not None, "logprobs that nobody wants"
                self.logprobs[key].append((token_id, logprob, top[:num_top]))


NUM_CHECKED, CHECKED_EACH = 90, 7
"""A step has three moves or two, so all kinds of moves are checked in turn."""


class Bench:
    """A scheduler, a simulated runner and an inbox, stepped by hand and checked after its moves.

    Each of the first `NUM_CHECKED` moves is checked, then one in `CHECKED_EACH`: checks took half of the time.
    It takes over what is in `pages`, if they are given, and keeps pages in `store`. An encoder answers while nothing
    else can run.
    """

    def __init__(
        self,
        num_pages: int = 40,
        page_size: int = 4,
        max_model_len: int = 64,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 32,
        is_sharing: bool = True,
        eos_token_id: int = EOS,
        drafter: Drafter | None = None,
        pages: SimulatedPages | None = None,
        store: SimulatedStore | None = None,
        plans_decodes_alone: bool = False,
        yielding: tuple[int, int] = (2, 3),
        windows: tuple[int, int] | None = None,
        states: tuple[int, int] | None = None,
        adapters: AdapterSlots | None = None,
        span_rows: SimulatedSpanRows | None = None,
        num_stages: int = 1,
    ):
        self.limits = Limits(max_model_len, VOCAB_SIZE, (eos_token_id,), adapters is not None)
        self.cache = open_cache(num_pages, page_size, is_sharing, pages, store, windows, states)
        if adapters is not None:
            self.cache.add_observer(adapters)
        self.span_rows = span_rows or SimulatedSpanRows()
        self.encoders = SimulatedEncoders(self.span_rows)
        self.cache.add_observer(PlacedSpans(self.span_rows, page_size, self.encoders, max_num_batched_tokens))
        self.grammars = SimulatedGrammars(self.limits)
        self.budget = Budget(max_num_seqs, max_num_batched_tokens, *yielding, num_stages=num_stages)
        planner = None if drafter is None else plan_all_drafts(self.cache, drafter)
        self.scheduler = Scheduler(
            self.cache,
            self.limits,
            self.budget,
            planner,
            self.grammars,
            plans_decodes_alone=plans_decodes_alone,
        )
        self.scheduler.receive(EncoderStarted("encoder"))
        self.adapters = adapters
        self.runner = SimulatedRunner(num_pages, page_size, VOCAB_SIZE)
        self.runner.windows, self.runner.states, self.runner.span_rows = windows, states, self.span_rows
        self.draft_runner: SimulatedRunner | None = None
        if pages is not None:
            self.runner.slots, self.runner.window_slots = pages.slots, pages.window_slots
            self.runner.state_slots = pages.state_slots
        if store is not None:
            store.slots = self.runner.slots
            if store.states is not None:
                store.states.by_slot = self.runner.state_slots
        self.inbox = Inbox()
        self.max_num_batched_tokens = max_num_batched_tokens
        self._num_moves = 0

    def _check(self) -> None:
        self._num_moves += 1
        if self._num_moves <= NUM_CHECKED or self._num_moves % CHECKED_EACH == 0:
            self.scheduler.check()

    def send(self, *messages: ToScheduler) -> None:
        for message in messages:
            self.scheduler.receive(message)
            self._check()
        self.inbox.take(self.scheduler.pop_replies())

    def plan(self) -> Batch | None:
        """Returns the next step; runs those of the draft model that it needs."""
        batch, proposal = self.scheduler.schedule(), self.scheduler.proposal
        if proposal is None:
            return batch
        assert self.draft_runner is not None
        return self.scheduler.add_drafts(run_draft_steps(proposal, self.draft_runner.run))

    def step(self) -> dict[int, int]:
        """Runs one step; returns the number of tokens that each request had in it, in the order of the rows."""
        batch = self.plan()
        while batch is None and (self.grammars.compiling or self.scheduler.is_loading):
            if self.encoders.open:
                self.send(self.encoders.answer())
            batch = self.plan()
        self.inbox.take(self.scheduler.pop_replies())
        if batch is None:
            return {}
        self._check()
        assert len(batch.token_ids) // 4 <= self.max_num_batched_tokens, "the step is over its budget"
        if self.adapters is not None:
            for slot, key in self.adapters.placements.items():
                self.runner.place_adapter(slot, key)
            self.adapters.placements.clear()
        self.scheduler.commit(self.runner.run(batch))
        self._check()
        self.inbox.take(self.scheduler.pop_replies())
        return dict(zip(unpack_int64(batch.uids), unpack_int32(batch.query_lens), strict=True))

    def run(self, max_steps: int = 10_000) -> int:
        """Runs until nothing is left; returns the number of steps."""
        for num_steps in range(max_steps):
            if not self.step():
                self.check_idle()
                return num_steps
        raise AssertionError(f"still busy after {max_steps} steps: {self.scheduler.gauges()}")

    def output(self, uid: int, attempt: int = 0) -> list[int]:
        return self.inbox.tokens[uid, attempt]

    def end(self, uid: int, attempt: int = 0) -> FinishedRow:
        return self.inbox.finished[uid, attempt]

    def gauge(self, name: str) -> float:
        return self.scheduler.gauges()[name]

    def check_idle(self) -> None:
        self.scheduler.check()
        assert not self.runner.is_wrong, "a step was planned wrongly"
        gauges = self.scheduler.gauges()
        for name in ("requests", "waiting", "running", "prefilling", "decoding", "replies", "pages_in_use"):
            assert gauges[name] == 0, f"{name} is not empty"
        assert gauges["pages_free"] + gauges["pages_cached"] == gauges["pages_all"]
        assert gauges.get("state_slots_in_use", 0) == 0, "a state slot was lost"
        assert gauges.get("adapter_slots_in_use", 0) == 0, "an adapter is in use"
        assert set(self.inbox.opened) >= set(self.inbox.finished)
