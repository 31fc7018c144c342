"""The Triton kernels of `route_tokens`: first a program chooses a token's experts, then one places an expert's rows.

Shape legend: X experts, K chosen experts of a token, R rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.routes import Routes, Routing
from kernels.gpu.key_blocks import LOWEST
from kernels.gpu.launch_table import find_launch


def route_tokens(
    logits_TX: Tensor, routing: Routing, bias_X: Tensor | None, scales_X: Tensor | None, routes: Routes
) -> None:
    (num_tokens, num_experts), num_chosen = logits_TX.shape, routing.num_chosen
    if not num_tokens:
        routes.ends.zero_()
        return
    chosen_TK = torch.empty_like(routes.rows)
    choose_experts[(num_tokens,)](
        logits_TX,
        logits_TX if bias_X is None else bias_X,
        logits_TX if scales_X is None else scales_X,
        routes.shares,
        chosen_TK,
        routing.scale,
        num_experts,
        HAS_BIAS=bias_X is not None,
        HAS_SCALES=scales_X is not None,
        IS_SIGMOID=routing.score == "sigmoid",
        IS_RENORMALIZED=routing.is_renormalized,
        NUM_CHOSEN=num_chosen,
        NUM_GROUPS=routing.num_groups,
        NUM_CHOSEN_GROUPS=routing.num_chosen_groups,
        NUM_BEST=routing.num_best_of_group,
        **find_launch("choose_experts", num_experts, num_chosen),
    )
    place_rows[(num_experts,)](
        chosen_TK,
        routes.rows,
        routes.tokens,
        routes.ends,
        num_tokens * num_chosen,
        num_chosen,
        **find_launch("place_rows"),
    )


@triton.jit
def pop_best(rank_X, index_X):
    """Returns the first of the best and the ranks without it."""
    best = tl.argmax(rank_X, 0)
    return best, tl.where(index_X == best, float("-inf"), rank_X)


@triton.jit(
    do_not_specialize=["num_experts"], do_not_specialize_on_alignment=["logits", "bias", "scales", "shares", "chosen"]
)
def choose_experts(
    logits,
    bias,
    scales,
    shares,
    chosen,
    scale,
    num_experts,
    HAS_BIAS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    IS_SIGMOID: tl.constexpr,
    IS_RENORMALIZED: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    NUM_CHOSEN_GROUPS: tl.constexpr,
    NUM_BEST: tl.constexpr,
    BLOCK_X: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The best first, equal ones by their numbers. NaN ranks lowest, so that no expert is chosen twice."""
    token = tl.program_id(0).to(tl.int64)
    index_X = tl.arange(0, BLOCK_X)
    mask_X = index_X < num_experts
    logit_X = tl.load(logits + token * num_experts + index_X, mask=mask_X, other=float("-inf")).to(tl.float32)
    if IS_SIGMOID:
        score_X = 1.0 / (1.0 + tl.exp(-logit_X))
    else:
        score_X = tl.exp(logit_X - tl.max(logit_X, 0))
        score_X = score_X / tl.sum(score_X, 0)
    rank_X = score_X
    if HAS_BIAS:
        rank_X += tl.load(bias + index_X, mask=mask_X, other=0.0)
    rank_X = tl.where(rank_X > LOWEST, rank_X, LOWEST)
    rank_X = tl.where(mask_X, rank_X, float("-inf"))
    if NUM_GROUPS > 1:
        size = num_experts // NUM_GROUPS
        rank_X = keep_best_groups(rank_X, index_X, size, NUM_GROUPS, NUM_CHOSEN_GROUPS, NUM_BEST)
    index_K = tl.arange(0, BLOCK_K)
    chosen_K = tl.zeros([BLOCK_K], tl.int32)
    share_K = tl.zeros([BLOCK_K], tl.float32)
    for place in range(NUM_CHOSEN):
        best, rank_X = pop_best(rank_X, index_X)
        share = tl.sum(tl.where(index_X == best, score_X, 0.0), 0)
        chosen_K = tl.where(index_K == place, best, chosen_K)
        share_K = tl.where(index_K == place, share, share_K)
    if IS_RENORMALIZED:
        share_K = share_K / tl.sum(share_K, 0)
    if HAS_SCALES:
        share_K *= tl.load(scales + chosen_K)
    out_K = token * NUM_CHOSEN + index_K
    tl.store(shares + out_K, share_K * scale, mask=index_K < NUM_CHOSEN)
    tl.store(chosen + out_K, chosen_K, mask=index_K < NUM_CHOSEN)


@triton.jit
def keep_best_groups(
    rank_X, index_X, size, NUM_GROUPS: tl.constexpr, NUM_CHOSEN_GROUPS: tl.constexpr, NUM_BEST: tl.constexpr
):
    """Returns the ranks, at -inf except in the best groups. A group's score is the sum of its best ranks."""
    group_X = index_X // size
    sum_X = tl.full(rank_X.shape, float("-inf"), tl.float32)
    for group in range(NUM_GROUPS):
        own_X = tl.where(group_X == group, rank_X, float("-inf"))
        score = tl.max(own_X, 0)
        if NUM_BEST > 1:
            second = tl.max(pop_best(own_X, index_X)[1], 0)
            score += tl.where(second == float("-inf"), 0.0, second)  # a group of one
        sum_X = tl.where(index_X == group, score, sum_X)
    kept_X = rank_X != rank_X
    for _ in range(NUM_CHOSEN_GROUPS):
        best, sum_X = pop_best(sum_X, index_X)
        kept_X = kept_X | (group_X == best)
    return tl.where(kept_X, rank_X, float("-inf"))


@triton.jit(
    do_not_specialize=["num_rows", "num_chosen"],
    do_not_specialize_on_alignment=["chosen", "rows", "tokens", "ends"],
)
def place_rows(chosen, rows, tokens, ends, num_rows, num_chosen, BLOCK: tl.constexpr):
    """The rows of an expert follow those of all experts before it, and are in the order of tokens."""
    expert = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    earlier = tl.zeros([BLOCK], tl.int32)
    for first in range(0, num_rows, BLOCK):
        other = tl.load(chosen + first + index, mask=first + index < num_rows, other=expert)
        earlier += (other < expert).to(tl.int32)
    end = tl.sum(earlier, 0)
    for first in range(0, num_rows, BLOCK):
        other = tl.load(chosen + first + index, mask=first + index < num_rows, other=-1)
        is_own = (other == expert).to(tl.int32)
        row = end + tl.cumsum(is_own, 0) - is_own
        tl.store(rows + first + index, row, mask=is_own != 0)
        tl.store(tokens + row, (first + index) // num_chosen, mask=is_own != 0)
        end += tl.sum(is_own, 0)
    tl.store(ends + expert, end)
