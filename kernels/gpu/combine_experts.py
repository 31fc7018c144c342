"""The Triton kernel of `combine_experts`: a program sums a piece of a token's outputs, in the order of its experts."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.routes import Routes
from kernels.gpu.launch_table import find_launch


def combine_experts(
    x_RE: Tensor, routes: Routes, shared_TE: Tensor | None, gate_T1: Tensor | None, _out_TE: Tensor | None
) -> Tensor:
    (num_tokens, num_chosen), size = routes.rows.shape, x_RE.shape[1]
    out_TE = torch.empty(num_tokens, size, dtype=x_RE.dtype, device=x_RE.device)
    launch = find_launch("combine_experts")
    if num_tokens:
        sum_outputs[(num_tokens, triton.cdiv(size, launch["BLOCK"]))](
            x_RE,
            routes.shares,
            routes.rows,
            x_RE if shared_TE is None else shared_TE,
            x_RE if gate_T1 is None else gate_T1,
            out_TE,
            size,
            NUM_CHOSEN=num_chosen,
            HAS_SHARED=shared_TE is not None,
            HAS_GATE=gate_T1 is not None,
            **launch,
        )
    return out_TE


@triton.jit(do_not_specialize_on_alignment=["shares", "rows", "gates"])
def sum_outputs(
    x,
    shares,
    rows,
    shared,
    gates,
    out,
    size,
    NUM_CHOSEN: tl.constexpr,
    HAS_SHARED: tl.constexpr,
    HAS_GATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < size
    total = tl.zeros([BLOCK], tl.float32)
    if HAS_SHARED:
        total += tl.load(shared + token * size + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_GATE:
        total *= 1.0 / (1.0 + tl.exp(-tl.load(gates + token).to(tl.float32)))
    for place in range(NUM_CHOSEN):
        row = tl.load(rows + token * NUM_CHOSEN + place).to(tl.int64)
        share = tl.load(shares + token * NUM_CHOSEN + place)
        total += share * tl.load(x + row * size + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * size + columns, total.to(out.dtype.element_ty), mask=mask)
