"""The routing of tokens to experts, and the sum of their outputs.

Shape legend: T tokens, E embedding size, X experts, K chosen experts of a token, R = T * K rows, sorted by expert, then
by token.
"""

import torch
from torch import Tensor

from kernels.arguments.routes import Routes, Routing
from kernels.dispatch import call


def route_tokens(logits_TX: Tensor, routing: Routing, memory: Tensor | None = None) -> Routes:
    """Returns the routes of tokens, in `memory` if it is given: int32, of X + 3 R words."""
    num_tokens, num_experts = logits_TX.shape
    if memory is None:
        size = num_experts + 3 * routing.num_chosen * num_tokens
        memory = torch.empty(size, dtype=torch.int32, device=logits_TX.device)
    routes = Routes.take(memory, num_tokens, num_experts, routing.num_chosen)
    call("route_tokens", logits_TX, route_tokens_reference, logits_TX.contiguous(), routing, routes)
    return routes


def route_tokens_reference(logits_TX: Tensor, routing: Routing, routes: Routes) -> None:
    shares_TK, chosen_TK = logits_TX.float().softmax(-1).topk(routing.num_chosen, dim=-1)
    if routing.is_renormalized:
        shares_TK = shares_TK / shares_TK.sum(-1, keepdim=True)
    routes.shares.copy_(shares_TK)
    order_R = chosen_TK.flatten().sort(stable=True).indices
    routes.tokens.copy_(order_R // routing.num_chosen)
    routes.rows.view(-1)[order_R] = torch.arange(len(order_R), dtype=torch.int32, device=logits_TX.device)
    experts_X1 = torch.arange(logits_TX.shape[1], device=logits_TX.device)[:, None]
    routes.ends.copy_((chosen_TK.flatten() <= experts_X1).sum(-1))


def gather_rows(x_TE: Tensor, routes: Routes, out_RE: Tensor | None = None) -> Tensor:
    """Returns the inputs of the experts [R, E]."""
    return call("gather_rows", x_TE, gather_rows_reference, x_TE.contiguous(), routes, out_RE)


def gather_rows_reference(x_TE: Tensor, routes: Routes, _out_RE: Tensor | None) -> Tensor:
    return x_TE[routes.tokens]


def combine_experts(
    x_RE: Tensor, routes: Routes, gate_T1: Tensor | None = None, out_TE: Tensor | None = None
) -> Tensor:
    """Returns the sum of each token's outputs times its shares [T, E], possibly in `out_TE`.

    With a gate, `out_TE` has other outputs: they are added times the sigmoid of the gate.
    """
    assert gate_T1 is None or out_TE is not None
    return call("combine_experts", x_RE, combine_experts_reference, x_RE, routes, gate_T1, out_TE)


def combine_experts_reference(x_RE: Tensor, routes: Routes, gate_T1: Tensor | None, out_TE: Tensor | None) -> Tensor:
    sum_TE = (x_RE[routes.rows].float() * routes.shares[..., None]).sum(1)
    if gate_T1 is not None and out_TE is not None:
        sum_TE = sum_TE + gate_T1.float().sigmoid() * out_TE.float()
    return sum_TE.to(x_RE.dtype)
