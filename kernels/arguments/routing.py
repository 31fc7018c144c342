"""How the experts of a token are chosen. Needs no torch."""

from dataclasses import dataclass
from typing import Literal

MAX_EXPERTS = 1024
"""kernels/cpu/source/experts.c repeats it: the C kernels have room for that many scores of a token."""


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How experts are chosen: those with the best scores, the softmax or the sigmoids of the router's logits.

    A chosen expert's share is its score; if `is_renormalized`, it is divided by the sum of the chosen ones'. That makes
    a softmax the same before and after the choice. Shares are multiplied by `scale`. With groups, equal numbers of
    neighbouring experts, only those of `num_chosen_groups` can be chosen: a group's score is the sum of its best ones,
    `num_best_of_group`.
    """

    num_chosen: int
    is_renormalized: bool = False
    score: Literal["softmax", "sigmoid"] = "softmax"
    num_groups: int = 1
    num_chosen_groups: int = 1
    num_best_of_group: Literal[1, 2] = 2
    scale: float = 1.0
