"""The routing of tokens to experts, and the sum of their outputs.

Shape legend: T tokens, E embedding size, X experts, K chosen experts of a token, R = T * K rows, sorted by expert, then
by token.
"""

import torch
from torch import Tensor

from kernels.arguments.routes import Routes, Routing
from kernels.dispatch import call


def route_tokens(
    logits_TX: Tensor,
    routing: Routing,
    memory: Tensor | None = None,
    bias_X: Tensor | None = None,
    scales_X: Tensor | None = None,
) -> Routes:
    """Returns the routes of tokens, in `memory` if it is given: int32, of X + 3 R words.

    `bias_X` (float32) is added to the scores for the choice alone; shares do not have it. Shares are multiplied by
    their experts' `scales_X` (float32).
    """
    num_tokens, num_experts = logits_TX.shape
    if memory is None:
        size = num_experts + 3 * routing.num_chosen * num_tokens
        memory = torch.empty(size, dtype=torch.int32, device=logits_TX.device)
    routes = Routes.take(memory, num_tokens, num_experts, routing.num_chosen)
    call("route_tokens", logits_TX, route_tokens_reference, logits_TX.contiguous(), routing, bias_X, scales_X, routes)
    return routes


def route_tokens_reference(
    logits_TX: Tensor, routing: Routing, bias_X: Tensor | None, scales_X: Tensor | None, routes: Routes
) -> None:
    scores_TX = logits_TX.float().sigmoid() if routing.score == "sigmoid" else logits_TX.float().softmax(-1)
    ranks_TX = scores_TX if bias_X is None else scores_TX + bias_X
    if routing.num_groups > 1:
        ranks_TX = _keep_best_groups(ranks_TX, routing)
    chosen_TK = ranks_TX.topk(routing.num_chosen, dim=-1).indices
    shares_TK = scores_TX.gather(1, chosen_TK)
    if routing.is_renormalized:
        shares_TK = shares_TK / shares_TK.sum(-1, keepdim=True)
    scales = routing.scale if scales_X is None else routing.scale * scales_X[chosen_TK]
    routes.shares.copy_(shares_TK * scales)
    order_R = chosen_TK.flatten().sort(stable=True).indices
    routes.tokens.copy_(order_R // routing.num_chosen)
    routes.rows.view(-1)[order_R] = torch.arange(len(order_R), dtype=torch.int32, device=logits_TX.device)
    experts_X1 = torch.arange(logits_TX.shape[1], device=logits_TX.device)[:, None]
    routes.ends.copy_((chosen_TK.flatten() <= experts_X1).sum(-1))


def _keep_best_groups(ranks_TX: Tensor, routing: Routing) -> Tensor:
    """Returns the ranks with those of all groups but the best at -inf."""
    ranks_TGX = ranks_TX.unflatten(1, (routing.num_groups, -1))
    sums_TG = ranks_TGX.topk(min(routing.num_best_of_group, ranks_TGX.shape[2]), dim=-1).values.sum(-1)
    is_kept_TG = torch.zeros_like(sums_TG, dtype=torch.bool)
    is_kept_TG.scatter_(1, sums_TG.topk(routing.num_chosen_groups, dim=-1).indices, True)
    return ranks_TGX.where(is_kept_TG[..., None], -torch.inf).flatten(1)


def all_to_one_expert(x_TE: Tensor) -> Routes:
    """Returns routes by which each token's row is its only output: `combine_experts` then adds a shared expert's."""
    index_T = torch.arange(len(x_TE), dtype=torch.int32, device=x_TE.device)
    return Routes(torch.ones(len(x_TE), 1, device=x_TE.device), index_T[:, None], index_T, index_T[-1:] + 1)


def gather_rows(x_TE: Tensor, routes: Routes, out_RE: Tensor | None = None) -> Tensor:
    """Returns the inputs of the experts [R, E]."""
    return call("gather_rows", x_TE, gather_rows_reference, x_TE.contiguous(), routes, out_RE)


def gather_rows_reference(x_TE: Tensor, routes: Routes, _out_RE: Tensor | None) -> Tensor:
    return x_TE[routes.tokens]


def combine_experts(
    x_RE: Tensor,
    routes: Routes,
    shared_TE: Tensor | None = None,
    gate_T1: Tensor | None = None,
    out_TE: Tensor | None = None,
) -> Tensor:
    """Returns the sum of each token's outputs times its shares [T, E], possibly in `out_TE`, which may be `shared_TE`.

    `shared_TE`: outputs that are added, times the sigmoid of the gate if there is one.
    """
    assert shared_TE is None or shared_TE.shape == (len(routes.rows), x_RE.shape[1])
    assert gate_T1 is None or (shared_TE is not None and gate_T1.shape == (len(routes.rows), 1))
    arguments = x_RE, routes, shared_TE, gate_T1, out_TE
    return call("combine_experts", x_RE, combine_experts_reference, *arguments)


def combine_experts_reference(
    x_RE: Tensor, routes: Routes, shared_TE: Tensor | None, gate_T1: Tensor | None, _out_TE: Tensor | None
) -> Tensor:
    sum_TE = (x_RE[routes.rows].float() * routes.shares[..., None]).sum(1)
    if shared_TE is not None:
        sum_TE = sum_TE + shared_TE.float() * (1.0 if gate_T1 is None else gate_T1.float().sigmoid())
    return sum_TE.to(x_RE.dtype)
