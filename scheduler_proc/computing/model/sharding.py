"""The part of a model that each rank has (`--tensor-parallel`), or that a stage has. Plain values, no torch."""

from dataclasses import dataclass, replace
from functools import cached_property

from scheduler_proc.computing.model.description import ModelDescription


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
        _ = self.own

    @cached_property
    def own(self) -> ModelDescription:
        """The model that the rank computes."""
        layers = tuple(layer.divided(self.num_ranks) for layer in self.whole.layers)
        return replace(self.whole, layers=layers, num_ranks=self.num_ranks, held_layers=self.layers)
