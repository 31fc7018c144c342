"""Describes a gated short convolution (LFM2) as plain values. Needs no torch."""

from dataclasses import dataclass, replace
from typing import Self

from scheduler_proc.computing.model.description import CachePart, MixerDescription
from scheduler_proc.computing.model.parameters import ByColumns, ByRows, Parameter, divide, linear_parameters


@dataclass(frozen=True, kw_only=True)
class ShortConvDescription(MixerDescription):
    """A convolution over `num_taps` tokens of `size` channels. One linear makes B, C and x; y = C * conv(B * x)."""

    size: int
    num_taps: int
    has_bias: bool = False

    @property
    def out_size(self) -> int:
        return self.size

    @property
    def state(self) -> tuple[CachePart, ...]:
        return (CachePart("tail", (self.num_taps - 1, self.size), "activation"),)

    def room_sizes(self, hidden_size: int) -> dict[str, int]:
        return {"heads": 3 * self.size}

    def divided(self, num_ranks: int) -> Self:
        return replace(self, size=divide(self.size, num_ranks, "channels of a convolution"))

    def parameters(self, layer: str, hidden_size: int) -> list[Parameter]:
        channels = (self.size, 1)
        split = ByRows((channels,))
        bias = [Parameter(f"{layer}.conv.bias", (self.size,), "bias", split)] if self.has_bias else []
        return [
            *linear_parameters(f"{layer}.conv_in", 3 * self.size, hidden_size, self.has_bias, ByRows((channels,) * 3)),
            *linear_parameters(f"{layer}.conv_out", hidden_size, self.size, self.has_bias, ByColumns()),
            Parameter(f"{layer}.conv.weight", (self.size, self.num_taps), "norm", split),
            *bias,
        ]
