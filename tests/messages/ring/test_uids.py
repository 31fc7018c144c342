"""Blocks of uids, and messages about frontends that are gone."""

from itertools import permutations

import pytest

from messages.ring.requests import DropBefore
from messages.ring.uids import (
    UIDS_PER_BLOCK,
    GoneRequests,
    block_of,
    find_gone,
    first_uid_of,
    frontend_blocks,
    frontend_socket,
)

N = UIDS_PER_BLOCK


def test_uids_report_the_block_and_the_first_one_has_the_plain_socket():
    assert [block_of(uid) for uid in (1, N + 1, 2 * N, 2 * N + 5, 3 * N + 1)] == [1, 1, 2, 2, 3]
    assert [frontend_socket(block) for block in (1, 2, 10)] == ["frontend", "frontend.2", "frontend.10"]
    assert frontend_blocks(["launcher", "frontend", "tokenizer.2", "frontend.2", "frontend.10"]) == [1, 2, 10]
    assert all(block_of(first_uid_of(block) + 1) == block for block in (1, 2, 10))


@pytest.mark.parametrize(
    ("known", "living", "reported"),
    [
        ([], [], None),
        ([1], [1], None),
        ([1, 2, 3], [1, 2, 3], None),
        ([2], [2], DropBefore(2 * N)),
        ([1, 2], [1], DropBefore(3 * N, (1,))),
        ([1, 2], [2], DropBefore(2 * N)),
        ([3, 5, 6], [3, 5, 6], DropBefore(5 * N, (3,))),
        ([3, 5, 6], [5], DropBefore(7 * N, (5,))),
    ],
)
def test_blocks_up_to_the_largest_known_one_are_of_frontends_that_live_or_are_gone(
    known: list[int], living: list[int], reported: DropBefore | None
):
    assert find_gone(known, living) == reported


def test_who_is_gone_once_is_gone_for_ever_the_one_who_reports_it_and_in_any_order():
    drops = [DropBefore(3 * N, (1,)), DropBefore(5 * N, (1, 3)), DropBefore(7 * N, (1, 5)), DropBefore(3 * N, (1,))]
    for order in permutations(drops):
        gone = GoneRequests()
        for drop in order:
            gone.record(drop)
        assert [block for block in range(1, 9) if gone.has(first_uid_of(block) + 1)] == [2, 3, 4, 6]


def test_no_one_is_gone_before_it_is_notified():
    assert not GoneRequests().has(N + 1)
