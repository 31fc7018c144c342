"""Describes a Mamba-2 block as plain values. Needs no torch."""

from dataclasses import dataclass, replace
from math import inf
from typing import Self

from messages.errors import BootError
from scheduler_proc.computing.model.description import CachePart, MixerDescription
from scheduler_proc.computing.model.parameters import ByColumns, ByRows, Parameter, divide, linear_parameters


@dataclass(frozen=True, kw_only=True)
class MambaDescription(MixerDescription):
    """Mamba-2 (arXiv:2405.21060). Each head has a matrix of `head_dim` values by `state_size`.

    One linear makes gates, values, B and C of each group of heads, and time steps. Values, B and C pass a convolution
    over `num_taps` tokens. Outputs are multiplied by silu(gate). With `has_norm`, those of each group are normalized:
    before that if `norms_first`, else after it. Time steps are limited to `time_limits`.
    """

    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    num_taps: int
    norm_eps: float
    has_norm: bool = True
    norms_first: bool = False
    has_conv_bias: bool = True
    has_bias: bool = False
    time_limits: tuple[float, float] = (0.0, inf)

    def __post_init__(self) -> None:
        if self.num_heads % self.num_groups:
            raise BootError(f"config.json: {self.num_heads} Mamba heads: not a multiple of {self.num_groups} groups")

    @property
    def out_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def conv_size(self) -> int:
        """Values, then B, then C."""
        return self.out_size + 2 * self.num_groups * self.state_size

    @property
    def in_size(self) -> int:
        """Gates, then what passes the convolution, then time steps."""
        return self.out_size + self.conv_size + self.num_heads

    @property
    def state(self) -> tuple[CachePart, ...]:
        return (
            CachePart("tail", (self.num_taps - 1, self.conv_size), "activation"),
            CachePart("matrix", (self.num_heads, self.head_dim, self.state_size), "float32"),
        )

    def room_sizes(self, hidden_size: int) -> dict[str, int]:
        return {"heads": self.in_size, "inner": self.conv_size}

    def divided(self, num_ranks: int) -> Self:
        """Each rank has whole groups of heads."""
        num_groups = divide(self.num_groups, num_ranks, "groups of Mamba heads")
        return replace(self, num_heads=self.num_heads // num_ranks, num_groups=num_groups)

    def parameters(self, layer: str, hidden_size: int) -> list[Parameter]:
        heads, groups = (self.num_heads, self.head_dim), (self.num_groups, self.state_size)
        by_conv, by_heads = ByRows((heads, groups, groups)), ByRows(((self.num_heads, 1),))
        by_sections = ByRows((heads, *by_conv.sections, *by_heads.sections))
        vectors = [Parameter(f"{layer}.mamba_{name}", (self.num_heads,), "float32", by_heads) for name in VECTORS]
        if self.has_conv_bias:
            vectors.append(Parameter(f"{layer}.conv.bias", (self.conv_size,), "bias", by_conv))
        if self.has_norm:
            vectors.append(Parameter(f"{layer}.mamba_norm.weight", (self.out_size,), "norm", ByRows((heads,))))
        return [
            *linear_parameters(f"{layer}.mamba_in", self.in_size, hidden_size, self.has_bias, by_sections),
            *linear_parameters(f"{layer}.mamba_out", hidden_size, self.out_size, self.has_bias, ByColumns()),
            Parameter(f"{layer}.conv.weight", (self.conv_size, self.num_taps), "norm", by_conv),
            *vectors,
        ]


VECTORS = ("rate_log", "skip", "time_bias")
"""Numbers of each head: the logarithm of its rate of decay, its share of values in outputs, what time steps get."""
