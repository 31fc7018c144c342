"""Draft tokens: who proposes what may come next, and how much of it was right.

A sampled token is a function of the tokens before it, the seed and its position, whatever else is in the step. So a
draft token is right exactly where it equals the token that is sampled in its place, and drafts change no output.
"""

from array import array
from collections.abc import Sequence
from typing import Protocol

from scheduler_proc.deciding.requests import PendingReq


class Drafter(Protocol):
    def propose(self, pending: PendingReq, max_tokens: int) -> "array[int]":
        """Returns at most `max_tokens` int32 ids of the vocabulary that may follow the request's tokens; none is good.

        Called before each step in which a row could have some.
        """
        ...


def num_accepted(draft_ids: "array[int]", sampled: Sequence[int]) -> int:
    """Returns how many of the tokens `sampled` count: those after right draft tokens, and the one that begins.

    `sampled[i]` comes after the first i draft tokens; the last ones may be missing.
    """
    for index, draft_id in enumerate(draft_ids[: len(sampled)]):
        if sampled[index] != draft_id:
            return index + 1
    return min(len(sampled), len(draft_ids) + 1)
