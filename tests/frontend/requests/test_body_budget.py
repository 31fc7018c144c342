import asyncio
import time

import pytest

from frontend.errors import UnavailableError
from frontend.requests.body_budget import BRIEF_S, FREE_BYTES, BodyBudget, HeldBody


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


def test_large_bodies_are_worked_on_one_at_a_time_with_pauses_for_all_else():
    budget = BodyBudget(1 << 30, lambda _: None)
    done: list[str] = []

    async def large() -> None:
        held = HeldBody(budget)
        held.grow(FREE_BYTES + 1)
        await held.take_turn()
        time.sleep(30 * BRIEF_S)  # the pause after it is as long, and this process may wait for a core meanwhile
        done.append("large")

    async def small() -> None:
        held = HeldBody(budget)
        held.grow(FREE_BYTES)
        await held.take_turn()
        for _ in range(20):
            await asyncio.sleep(0)
        done.append("small")

    async def run() -> None:
        await asyncio.gather(*[large() for _ in range(3)], small())

    asyncio.run(run())
    assert done == ["large", "small", "large", "large"]
