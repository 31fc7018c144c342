"""A layer: attention and MLP, each behind its norm, and the residual stream that goes through all layers.

Shape legend: T tokens, E embedding size, H query heads, D head dimension.
"""

from dataclasses import dataclass

from torch import Tensor

from kernels.arguments.paged_kv import PagedKV
from scheduler_proc.computing.model.blocks.attention import Attention, attention_parameters
from scheduler_proc.computing.model.blocks.dense_mlp import DenseMlp, mlp_parameters
from scheduler_proc.computing.model.blocks.norm import Norm, norm_parameters
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.description import LayerDescription
from scheduler_proc.computing.model.parameters import Parameter
from scheduler_proc.computing.model.rope_tables import RopeTables
from scheduler_proc.computing.model.workspace import Activations
from scheduler_proc.computing.parallel import ParallelGroup
from scheduler_proc.computing.step.inputs import StepInputs


@dataclass
class Stream:
    """The residual stream of a step on its way through the layers."""

    residual: Tensor
    """[T, E]"""
    update: Tensor | None
    """[T, E]: the update that the next norm adds to it."""
    attended: Tensor
    """[T, H, D]: buffer for one layer's attention output, which is read before the next layer overwrites it."""
    room: Activations


def layer_parameters(name: str, layer: LayerDescription, hidden_size: int) -> list[Parameter]:
    return [
        *norm_parameters(f"{name}.attention_norm", layer.attention_norm),
        *attention_parameters(name, layer.attention, hidden_size),
        *norm_parameters(f"{name}.mlp_norm", layer.mlp_norm),
        *mlp_parameters(name, layer.mlp, hidden_size),
    ]


class Layer:
    def __init__(
        self,
        name: str,
        layer: LayerDescription,
        weights: Weights,
        rope_tables: RopeTables | None,
        parallel: ParallelGroup,
    ):
        self._attention_norm = Norm(f"{name}.attention_norm", layer.attention_norm, weights)
        self._attention = Attention(name, layer.attention, weights, rope_tables, parallel)
        self._mlp_norm = Norm(f"{name}.mlp_norm", layer.mlp_norm, weights)
        self._mlp = DenseMlp(name, layer.mlp, weights, parallel)

    def apply(self, stream: Stream, step: StepInputs, cache: PagedKV, *, is_narrow: bool) -> None:
        """Applies this layer to the stream and stores the K and V of all tokens in `cache`.

        With `is_narrow`, only `step.head_tokens` are computed after the K and V: the last layer needs no others.
        """
        room = stream.room
        narrow = room.take(len(step.head_tokens)) if is_narrow else None
        normed_TE = self._attention_norm(stream.residual, stream.update, room.normed)
        stream.update = self._attention(normed_TE, step, cache, stream.attended, room, narrow)
        if narrow is not None:
            stream.residual, stream.room = stream.residual[step.head_tokens], narrow
        normed_TE = self._mlp_norm(stream.residual, stream.update, stream.room.normed)
        stream.update = self._mlp(normed_TE, stream.room)
