"""The part of a model that each rank has (`--tensor-parallel`), or that a stage has. Plain values, no torch."""

from dataclasses import dataclass, replace
from functools import cached_property

from messages.errors import BootError
from scheduler_proc.computing.model.description import LayerDescription, ModelDescription


@dataclass(frozen=True)
class Shard:
    """The part of the model `whole` that rank `rank` of `num_ranks` has. Raises `BootError` if it is not divisible.

    `layers`: only these have weights, and embedding and head if the first and the last layer have.
    """

    whole: ModelDescription
    rank: int = 0
    num_ranks: int = 1
    layers: range | None = None

    def __post_init__(self) -> None:
        for layer in self.whole.layers:
            _check_divisible(layer, self.num_ranks)

    @cached_property
    def own(self) -> ModelDescription:
        """The model that the rank computes. If there are fewer key/value heads than ranks, several ranks have each."""
        layers = tuple(_divide(layer, self.num_ranks) for layer in self.whole.layers)
        return replace(self.whole, layers=layers, num_ranks=self.num_ranks)


def _check_divisible(layer: LayerDescription, num_ranks: int) -> None:
    attention = layer.attention
    if attention is not None and attention.num_heads % num_ranks:
        raise BootError(
            f"--tensor-parallel {num_ranks}: it does not divide the model's {attention.num_heads} attention heads"
        )
    for block in filter(None, (layer.recurrent, layer.mlp)):
        block.divided(num_ranks)
    num_kv_heads = num_ranks if attention is None else attention.num_kv_heads
    if num_kv_heads % num_ranks and num_ranks % num_kv_heads:
        raise BootError(
            f"--tensor-parallel {num_ranks}: the model's {num_kv_heads} key/value heads can neither be divided "
            "among these ranks, nor each be given to the same number of ranks"
        )


def _divide(layer: LayerDescription, num_ranks: int) -> LayerDescription:
    attention = layer.attention
    if attention is not None:
        num_kv_heads = max(1, attention.num_kv_heads // num_ranks)
        attention = replace(attention, num_heads=attention.num_heads // num_ranks, num_kv_heads=num_kv_heads)
    recurrent, mlp = (block and block.divided(num_ranks) for block in (layer.recurrent, layer.mlp))
    return replace(layer, attention=attention, recurrent=recurrent, mlp=mlp)
