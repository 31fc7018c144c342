"""A mixture of experts, computed by plain torch: the reference, and slow.

Which experts compute depends on the data, so steps with this block are not captured.

Shape legend: T tokens, E embedding size, X experts, K chosen experts of a token, N tokens of one expert.
"""

import torch
from torch import Tensor

from kernels.operations.silu_mul import silu_mul
from scheduler_proc.computing.model.blocks.weights import Weights, pop_linear
from scheduler_proc.computing.model.families.qwen3_moe import ExpertMlpDescription
from scheduler_proc.computing.model.workspace import Activations
from scheduler_proc.computing.parallel import ParallelGroup
from scheduler_proc.computing.step.inputs import StepRows


class Block:
    def __init__(self, layer: str, mlp: ExpertMlpDescription, weights: Weights, parallel: ParallelGroup):
        assert parallel.size == 1
        self._mlp = mlp
        self._router = pop_linear(weights, f"{layer}.router")
        names = [f"{layer}.experts.{expert}" for expert in range(mlp.num_experts)]
        self._experts = [(pop_linear(weights, f"{name}.in"), pop_linear(weights, f"{name}.out")) for name in names]

    def __call__(self, normed_TE: Tensor, rows: StepRows, room: Activations) -> Tensor:
        probabilities_TX = self._router(normed_TE, rows).softmax(dim=-1, dtype=torch.float32)
        shares_TK, experts_TK = probabilities_TX.topk(self._mlp.num_chosen, dim=-1)
        if self._mlp.is_renormalized:
            shares_TK = shares_TK / shares_TK.sum(dim=-1, keepdim=True)
        update_TE = torch.zeros_like(normed_TE)
        for expert in experts_TK.unique().tolist():
            linear_in, linear_out = self._experts[expert]
            tokens_N, places_N = (experts_TK == expert).nonzero(as_tuple=True)
            own_rows = rows.narrowed(tokens_N)
            out_NE = linear_out(silu_mul(linear_in(normed_TE[tokens_N], own_rows)), own_rows)
            shares_N = shares_TK[tokens_N, places_N].to(out_NE.dtype)
            update_TE.index_add_(0, tokens_N, out_NE * shares_N[:, None])
        return update_TE
