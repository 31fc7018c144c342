"""Describes multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) as plain values. Needs no torch."""

from dataclasses import dataclass, replace
from typing import Self

from messages.errors import BootError
from scheduler_proc.computing.model.description import CachePart, MixerDescription, RopeDescription
from scheduler_proc.computing.model.parameters import ByColumns, ByRows, Parameter, divide, linear_parameters


@dataclass(frozen=True, kw_only=True)
class LatentAttentionDescription(MixerDescription):
    """Keys and values of all heads are linear in a latent of `rank` values; keys also have `rotated_dim` values that
    all heads share and positions rotate. Both are cached, in place of keys and values.

    A query head has `plain_dim` values, then `rotated_dim`; a value head has `value_dim`. With `query_rank`, queries
    are computed from a latent of their own. `norm_eps`: of the norms of latents. `has_bias`: the linears that make
    latents and the output have one. `has_neighbour_pairs`: in checkpoints, neighbouring values are rotated together.
    """

    num_heads: int
    rank: int
    plain_dim: int
    rotated_dim: int
    value_dim: int
    scale: float
    rope: RopeDescription
    query_rank: int | None = None
    norm_eps: float = 1e-6
    has_bias: bool = False
    has_neighbour_pairs: bool = True

    def __post_init__(self) -> None:
        if self.rotated_dim % 2 or self.rope.part != 1:
            reason = f"rotary positions of {self.rope.part:g} of {self.rotated_dim} values: an even number is needed"
            raise BootError(f"config.json: {reason}")

    @property
    def latent_size(self) -> int:
        return self.rank + self.rotated_dim

    @property
    def kind(self) -> tuple[int, int, int, int | None]:
        return self.num_heads, 1, self.latent_size, None

    @property
    def latent_rank(self) -> int:
        return self.rank

    @property
    def query_parts(self) -> tuple[int, int]:
        """The values of a query head that are not, and are rotated."""
        return self.plain_dim, self.rotated_dim

    @property
    def query_size(self) -> int:
        """The values of all query heads."""
        return self.num_heads * (self.plain_dim + self.rotated_dim)

    @property
    def cache(self) -> tuple[CachePart, ...]:
        return (CachePart("latents", (1, self.latent_size), num_uncoded=self.rotated_dim),)

    @property
    def out_size(self) -> int:
        return self.num_heads * self.value_dim

    def room_sizes(self, hidden_size: int) -> dict[str, int]:
        absorbed = self.num_heads * self.rank
        return {
            "heads": max(self.query_size, absorbed),
            "inner": max(self.query_rank or 0, self.latent_size),
            "gated": max(self.query_size, self.out_size),
            "copies": absorbed,
            "routes": self.num_heads,
        }

    def divided(self, num_ranks: int) -> Self:
        """Each rank has all latents."""
        return replace(self, num_heads=divide(self.num_heads, num_ranks, "attention heads"))

    def parameters(self, layer: str, hidden_size: int) -> list[Parameter]:
        num_heads, parameters, query_inputs = self.num_heads, list[Parameter](), hidden_size
        if self.query_rank is not None:
            query_inputs = self.query_rank
            parameters += linear_parameters(f"{layer}.query_latent", query_inputs, hidden_size, self.has_bias, None)
            parameters.append(Parameter(f"{layer}.query_norm.weight", (query_inputs,), "norm"))
        by_heads = ByRows(((num_heads, self.plain_dim + self.rotated_dim),))
        parameters += linear_parameters(f"{layer}.query", self.query_size, query_inputs, has_bias=False, split=by_heads)
        parameters += linear_parameters(f"{layer}.latent", self.latent_size, hidden_size, self.has_bias, None)
        parameters.append(Parameter(f"{layer}.latent_norm.weight", (self.rank,), "norm"))
        for name, num_out, num_in in (("keys", self.rank, self.plain_dim), ("values", self.value_dim, self.rank)):
            shape, split = (num_heads * num_out, num_in), ByRows(((num_heads, num_out),))
            parameters.append(Parameter(f"{layer}.latent_{name}.weight", shape, "experts", split, num_heads))
        out = f"{layer}.attention_out"
        return parameters + linear_parameters(out, hidden_size, self.out_size, self.has_bias, ByColumns())
