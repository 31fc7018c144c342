"""Describes Gated DeltaNet as plain values. Needs no torch."""

from dataclasses import dataclass, replace
from typing import Self

from messages.errors import BootError
from scheduler_proc.computing.model.description import CachePart, MixerDescription
from scheduler_proc.computing.model.parameters import ByColumns, ByRows, Parameter, divide, linear_parameters


@dataclass(frozen=True, kw_only=True)
class GatedDeltaDescription(MixerDescription):
    """Queries, keys and values pass a convolution of `num_taps`; each value head has a matrix, and a gate after it.

    Successive value heads have the same key head. With `has_tiled_heads`, as in GGUF, successive ones have successive
    key heads, and the order repeats.
    """

    num_key_heads: int
    num_value_heads: int
    key_size: int
    value_size: int
    num_taps: int
    norm_eps: float
    has_tiled_heads: bool = False

    def __post_init__(self) -> None:
        if self.num_value_heads % self.num_key_heads:
            raise BootError(
                f"config.json: {self.num_value_heads} value heads (linear_num_value_heads): not a multiple of "
                f"{self.num_key_heads} key heads"
            )

    @property
    def out_size(self) -> int:
        return self.num_value_heads * self.value_size

    @property
    def conv_size(self) -> int:
        """The values per token that are convolved: all queries, all keys and all values."""
        return 2 * self.num_key_heads * self.key_size + self.out_size

    @property
    def state(self) -> tuple[CachePart, ...]:
        return (
            CachePart("tail", (self.num_taps - 1, self.conv_size), "activation"),
            CachePart("matrix", (self.num_value_heads, self.key_size, self.value_size), "float32"),
        )

    def room_sizes(self, hidden_size: int) -> dict[str, int]:
        return {"inner": self.conv_size + self.out_size, "gated": self.conv_size, "heads": 2 * self.num_value_heads}

    def divided(self, num_ranks: int) -> Self:
        """Ranks have a part of the value heads with their key heads: tiled ones, some of each key head."""
        num_key_heads, num_value_heads = self.num_key_heads, self.num_value_heads
        if self.has_tiled_heads:
            divide(num_value_heads // num_key_heads, num_ranks, "value heads of each key head, as GGUF has them")
        num_own = num_key_heads if self.has_tiled_heads else divide(num_key_heads, num_ranks, "key heads")
        return replace(self, num_key_heads=num_own, num_value_heads=num_value_heads // num_ranks)

    def parameters(self, layer: str, hidden_size: int) -> list[Parameter]:
        num_heads, values = self.num_value_heads, (self.num_value_heads, self.value_size)
        keys = self.num_key_heads, self.key_size
        if self.has_tiled_heads:  # all ranks have all of them
            keys = 1, self.num_key_heads * self.key_size
        num_in, by_head = self.conv_size + self.out_size, ByRows(((num_heads, 1),))
        gates = Parameter(
            f"{layer}.delta_gates.weight", (2 * num_heads, hidden_size), "router", ByRows(((num_heads, 1),) * 2)
        )
        return [
            *linear_parameters(f"{layer}.delta_in", num_in, hidden_size, False, ByRows((keys, keys, values, values))),
            gates,
            Parameter(f"{layer}.conv.weight", (self.conv_size, self.num_taps), "norm", ByRows((keys, keys, values))),
            Parameter(f"{layer}.A_log", (num_heads,), "float32", by_head),
            Parameter(f"{layer}.time_bias", (num_heads,), "float32", by_head),
            Parameter(f"{layer}.delta_norm.weight", (self.value_size,), "norm"),
            *linear_parameters(f"{layer}.delta_out", hidden_size, self.out_size, False, ByColumns()),
        ]
