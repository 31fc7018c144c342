"""The page pool, compared with a set."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler_proc.deciding.pages.pages import PagePool

NUM_PAGES = 12


class PoolMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.taken: list[int] = []

    @rule(data=st.data())
    def take(self, data):
        count = data.draw(st.integers(0, self.pool.num_free))
        pages = self.pool.allocate(count)
        assert len(pages) == count
        assert not set(pages) & set(self.taken)
        self.taken += pages

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give(self, data):
        pages = data.draw(st.lists(st.sampled_from(self.taken), unique=True))
        self.pool.free(pages)
        self.taken = [page for page in self.taken if page not in pages]

    @invariant()
    def accounts(self):
        assert self.pool.free_pages() == set(range(NUM_PAGES)) - set(self.taken)
        assert self.pool.num_free == NUM_PAGES - len(self.taken)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_more_pages_than_there_are_cannot_be_taken():
    pool = PagePool(3)
    pool.allocate(2)
    with pytest.raises(AssertionError):
        pool.allocate(2)


def test_a_page_freed_twice_is_found():
    pool = PagePool(3)
    pages = pool.allocate(2)
    pool.free(pages)
    pool.free(pages[:1])
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free_pages()


def test_the_page_freed_last_is_taken_first():
    pool = PagePool(8)
    pages = pool.allocate(3)
    pool.free([pages[1]])
    assert pool.allocate(1) == [pages[1]]


def test_pages_that_were_never_used_are_taken_last_and_in_order():
    """They may have no memory yet, and are populated in this order."""
    pool = PagePool(8, used=[1])
    pages = pool.allocate(3)
    assert sorted(pages) == [0, 2, 3]
    pool.free(pages)
    assert sorted(pool.allocate(3)) == sorted(pages)
    assert pool.allocate(1) == [4]
