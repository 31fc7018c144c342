"""The columns kept from step to step match their requests."""

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.radix import RadixTree
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.requests import Limits, PendingReq, State
from scheduler_proc.deciding.rows.decode_rows import DecodeRows
from tests.scheduler_proc.clients import user_msg

PAGE_SIZE = 2
LIMITS = Limits(1_000, 100, ())


class RowsMachine(RuleBasedStateMachine):
    """Pages are numbered as they are taken, so each request's table is its own."""

    def __init__(self):
        super().__init__()
        self.rows = DecodeRows(PAGE_SIZE)
        self.reqs: list[Req] = []
        self.num_pages = 0
        self.num_uids = 0

    def take_pages(self, req: Req, num_tokens: int) -> None:
        while len(req.pages) * PAGE_SIZE < num_tokens:
            req.pages.append(self.num_pages)
            self.num_pages += 1

    @rule(
        length=st.integers(1, 60),
        max_tokens=st.integers(2, 30),
        seed=st.integers(-(2**63), 2**63 - 1),
        num_logprobs=st.sampled_from([None, 0, 5]),
        presence_penalty=st.sampled_from([0.0, 0.5]),
    )
    def start(self, length, max_tokens, **params):
        self.num_uids += 1
        pending = PendingReq(user_msg(self.num_uids, [1] * length, max_tokens, **params), LIMITS, 1)
        req = Req(pending, RadixTree(PAGE_SIZE).root)
        self.take_pages(req, length)
        req.token_ids.append(self.num_uids % 90)
        pending.state = State.DECODE
        self.rows.append(req)
        self.reqs.append(req)

    @precondition(lambda self: self.reqs)
    @rule(data=st.data())
    def remove(self, data):
        req = data.draw(st.sampled_from(self.reqs))
        self.rows.remove(req)
        self.reqs.remove(req)

    @precondition(lambda self: self.reqs)
    @rule(data=st.data())
    def keep(self, data):
        is_kept = data.draw(st.lists(st.booleans(), min_size=len(self.reqs), max_size=len(self.reqs)))
        self.rows = self.rows.kept(is_kept)
        self.reqs = [req for req, keeps in zip(self.reqs, is_kept, strict=True) if keeps]

    @precondition(lambda self: self.reqs)
    @rule(token_id=st.integers(0, 90), data=st.data())
    def step_of_some(self, token_id, data):
        """The other rows need no page for it, and stay as they are."""
        rows = sorted(data.draw(st.sets(st.integers(0, len(self.reqs) - 1))))
        for req, num_tokens in self.rows.reqs_without_slot():
            if self.reqs.index(req) in rows:
                self.take_pages(req, num_tokens)
        self.rows.enter_pages()
        ended = self.rows.advance(rows, array("i", [token_id] * len(rows)))
        assert ended == [
            (row, self.reqs[row].pending.find_ending())
            for row in rows
            if len(self.reqs[row].token_ids) >= self.reqs[row].pending.max_len
        ]
        for req in [self.reqs[row] for row, _ in ended]:
            self.rows.remove(req)
            self.reqs.remove(req)

    @precondition(lambda self: self.reqs)
    @rule(token_id=st.integers(0, 90))
    def step(self, token_id):
        for req, num_tokens in self.rows.reqs_without_slot():
            assert num_tokens == len(req.token_ids)
            self.take_pages(req, num_tokens)
        self.rows.enter_pages()
        for row, req in enumerate(self.reqs):
            position = len(req.token_ids) - 1
            assert self.rows.slots[row] == req.pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE
        ended = self.rows.advance(range(len(self.reqs)), array("i", [token_id] * len(self.reqs)))
        assert ended == [
            (row, req.pending.find_ending())
            for row, req in enumerate(self.reqs)
            if len(req.token_ids) >= req.pending.max_len
        ]
        for req in [self.reqs[row] for row, _ in ended]:
            self.rows.remove(req)
            self.reqs.remove(req)

    @invariant()
    def columns_are_true(self):
        assert self.rows.reqs == self.reqs
        self.rows.check()
        columns = self.rows.sampling.columns
        assert list(columns["seeds"]) == [req.pending.sampling_params.seed for req in self.reqs]
        assert {len(column) for column in columns.values()} == {len(self.reqs)}


TestRows = RowsMachine.TestCase
TestRows.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


def test_tables_get_narrow_again_after_a_long_row():
    rows = DecodeRows(4)
    cache = BlockAllocator(400, 4)
    reqs = []
    for uid, length in enumerate((900, 7)):
        req = cache.open(PendingReq(user_msg(uid, [1] * length, 50), LIMITS, 1))
        assert cache.grow(req, length)
        req.pending.state = State.DECODE
        req.token_ids.append(2)
        rows.append(req)
        reqs.append(req)
    assert rows.table_width == 225
    rows.remove(reqs[0])
    rows.enter_pages()
    assert rows.table_width == 2
    rows.check()
