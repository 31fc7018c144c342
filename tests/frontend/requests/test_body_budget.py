import pytest

from frontend.errors import UnavailableError
from frontend.requests.body_budget import FREE_BYTES, BodyBudget, HeldBody


def test_bodies_share_a_budget_until_they_are_released():
    refusals: list[UnavailableError] = []
    budget = BodyBudget(1000, refusals.append)
    first, second = HeldBody(budget), HeldBody(budget)
    first.grow(FREE_BYTES)
    assert budget.num_bytes == 0
    first.grow(600)
    second.grow(FREE_BYTES + 400)
    assert budget.num_bytes == 1000
    with pytest.raises(UnavailableError, match="1000 bytes"):
        second.grow(1)
    assert [error.info.code for error in refusals] == ["queue_full"]
    HeldBody(budget).grow(FREE_BYTES)
    for body in (first, first, second):
        body.release()
    assert budget.num_bytes == 0


def test_without_a_budget_nothing_is_counted():
    body = HeldBody()
    body.grow(1 << 40)
    body.release()
