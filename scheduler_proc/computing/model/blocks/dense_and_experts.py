"""A dense MLP and experts that read the same tokens, each through norms of their own.

Shape legend: T tokens, E embedding size.
"""

from torch import Tensor

from kernels.operations.rescale import rescale
from scheduler_proc.computing.model.blocks import dense_mlp, expert_mlp
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.norm import Norm
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.expert_description import SIDE_NORMS, DenseAndExpertsDescription
from scheduler_proc.computing.model.workspace import Activations
from scheduler_proc.computing.step.rows import StepRows


class Block:
    def __init__(self, layer: str, mlp: DenseAndExpertsDescription, weights: Weights, context: BlockContext):
        self._dense = dense_mlp.Block(layer, mlp.dense, weights, context)
        self._experts = expert_mlp.Block(layer, mlp.experts, weights, context)
        self._norms = {name: Norm(f"{layer}.{name}", mlp.norm, weights) for name in SIDE_NORMS}
        router_norm = self._norms["router_norm"]
        router_norm.weight_E = router_norm.weight_E * mlp.norm.size**-0.5

    def __call__(self, residual_TE: Tensor, rows: StepRows, room: Activations) -> Tensor:
        norms = self._norms
        router_TE = norms["router_norm"](residual_TE, None, room.second_update)
        normed_TE = norms["experts_norm"](residual_TE, None, room.normed)
        update_TE = self._experts(normed_TE, rows, room, router_TE)
        experts_TE = norms["experts_out_norm"](update_TE, None, room.second_update)
        normed_TE = norms["dense_norm"](residual_TE, None, room.normed)
        update_TE = self._dense(normed_TE, rows, room)
        return rescale(norms["dense_out_norm"](update_TE, None, update_TE), added_TE=experts_TE)
