"""Describes a mixture of experts as plain values. Needs no torch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from kernels.arguments.routing import MAX_EXPERTS, Routing
from messages.errors import BootError
from scheduler_proc.computing.model.description import (
    BlockDescription,
    DenseMlpDescription,
    LayerDescription,
    NormDescription,
)
from scheduler_proc.computing.model.parameters import ByColumns, ByRows, Parameter, Split, divide


@dataclass(frozen=True, kw_only=True)
class ExpertMlpDescription(Routing, BlockDescription):
    """Experts of `size` inner values, of which a router chooses `num_chosen` for each token; gated except with `relu2`.

    With `has_correction` learned numbers are added to the scores for the choice. `shared`: an MLP of all tokens, whose
    output is added; with `has_shared_gate` it is first multiplied by the sigmoid of a linear. `has_bias`: all linears
    of the router and the experts have one. `swiglu_alpha` and `swiglu_limit` are those of `swiglu_oai`. `has_scales`:
    the share of a chosen expert is multiplied by a number of its own. `is_on_host`: experts are in the host's memory
    and are computed there, other parts on the device.
    """

    num_experts: int
    size: int
    has_correction: bool = False
    shared: DenseMlpDescription | None = None
    has_shared_gate: bool = False
    activation: Literal["silu_gated", "gelu_tanh_gated", "swiglu_oai", "relu2"] = "silu_gated"
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    has_bias: bool = False
    has_scales: bool = False
    is_on_host: bool = False

    def __post_init__(self) -> None:
        if self.num_experts > MAX_EXPERTS:
            raise BootError(f"config.json: {self.num_experts} experts: supported are {MAX_EXPERTS}")
        if self.num_chosen > self.num_experts:
            raise BootError(
                f"config.json: num_experts_per_tok is {self.num_chosen}: there are {self.num_experts} experts"
            )
        if self.num_experts % self.num_groups or self.num_chosen_groups > self.num_groups:
            raise BootError(
                f"config.json: {self.num_chosen_groups} of {self.num_groups} groups cannot be chosen of "
                f"{self.num_experts} experts"
            )
        num_possible = self.num_experts // self.num_groups * self.num_chosen_groups
        if self.num_chosen > num_possible:
            raise BootError(f"config.json: the groups chosen have {num_possible} experts, not {self.num_chosen}")

    @property
    def is_gated(self) -> bool:
        return self.activation != "relu2"

    @property
    def in_size(self) -> int:
        """Outputs of an expert's first linear."""
        return 2 * self.size if self.is_gated else self.size

    def room_sizes(self, hidden_size: int) -> dict[str, int]:
        own = {
            "inner": self.in_size * self.num_chosen,
            "gated": self.size * self.num_chosen,
            "copies": hidden_size * self.num_chosen,
            "routes": 2 * self.num_experts + 3 * self.num_chosen + 1,
        }
        shared = self.shared.room_sizes(hidden_size) if self.shared else {}
        return {name: max(size, shared.get(name, 0)) for name, size in own.items()}

    def divided(self, num_ranks: int) -> Self:
        """Each rank has a part of the inner values of every expert, and the whole router."""
        size = divide(self.size, num_ranks, "inner values of an expert")
        shared = self.shared and self.shared.divided(num_ranks)
        return replace(self, size=size, shared=shared)

    def parameters(self, layer: str, hidden_size: int) -> list[Parameter]:
        """The outputs of all experts are rows of one weight."""
        num_experts, num_rows_in = self.num_experts, self.num_experts * self.in_size
        by_inner = ByRows(((self.size, 1),) * (num_rows_in // self.size))
        parameters = [Parameter(f"{layer}.router.weight", (num_experts, hidden_size), "router")]
        linears: tuple[tuple[str, int, int, Split], ...] = (
            ("in", self.in_size, hidden_size, by_inner),
            ("out", hidden_size, self.size, ByColumns()),
        )
        for name, num_out, num_in, split in linears:
            linear, num_rows = f"{layer}.experts_{name}", num_experts * num_out
            weight = Parameter(f"{linear}.weight", (num_rows, num_in), "experts", split, num_experts, self.is_on_host)
            parameters.append(weight)
            if self.has_bias:
                bias_split = None if name == "out" else split
                bias = Parameter(f"{linear}.bias", (num_rows,), "bias", bias_split, is_on_host=self.is_on_host)
                parameters.append(bias)
        if self.has_bias:
            parameters.append(Parameter(f"{layer}.router.bias", (num_experts,), "bias"))
        if self.has_scales:
            scales = Parameter(f"{layer}.router.scales", (num_experts,), "norm", is_on_host=self.is_on_host)
            parameters.append(scales)
        if self.has_correction:
            correction = Parameter(f"{layer}.router_correction", (num_experts,), "float32", is_on_host=self.is_on_host)
            parameters.append(correction)
        if self.shared is not None:
            parameters += self.shared.parameters(f"{layer}.shared", hidden_size)
        if self.has_shared_gate:
            parameters.append(Parameter(f"{layer}.shared_gate.weight", (1, hidden_size), "router"))
        return parameters


SIDE_NORMS = ("router_norm", "experts_norm", "experts_out_norm", "dense_norm", "dense_out_norm")
"""The norms of `DenseAndExpertsDescription`."""


@dataclass(frozen=True, kw_only=True)
class DenseAndExpertsDescription(BlockDescription):
    """A dense MLP and experts side by side, as in Gemma 4. The sum of their outputs is the output.

    They read the residual stream, each through a norm of its own, as does the router, and each output has a norm. The
    router's norm is divided by the square root of its size.
    """

    dense: DenseMlpDescription
    experts: ExpertMlpDescription
    norm: NormDescription

    def room_sizes(self, hidden_size: int) -> dict[str, int]:
        sizes = Counter(self.dense.room_sizes(hidden_size)) | Counter(self.experts.room_sizes(hidden_size))
        return {**sizes, "second_update": hidden_size}

    def divided(self, num_ranks: int) -> Self:
        return replace(self, dense=self.dense.divided(num_ranks), experts=self.experts.divided(num_ranks))

    def parameters(self, layer: str, hidden_size: int) -> list[Parameter]:
        return [
            *self.dense.parameters(layer, hidden_size),
            *self.experts.parameters(layer, hidden_size),
            *(Parameter(f"{layer}.{name}.weight", (hidden_size,), "norm") for name in SIDE_NORMS),
        ]


def find_experts(layer: LayerDescription) -> ExpertMlpDescription | None:
    """Returns the experts of a layer, if it has some."""
    mlp = layer.mlp.experts if isinstance(layer.mlp, DenseAndExpertsDescription) else layer.mlp
    return mlp if isinstance(mlp, ExpertMlpDescription) else None


def on_host(layer: LayerDescription) -> LayerDescription:
    """Returns the layer with its experts, if it has some, in the host's memory."""
    match layer.mlp:
        case ExpertMlpDescription():
            return replace(layer, mlp=replace(layer.mlp, is_on_host=True))
        case DenseAndExpertsDescription():
            return replace(layer, mlp=replace(layer.mlp, experts=replace(layer.mlp.experts, is_on_host=True)))
        case _:
            return layer


def find_host_layers(layers: Sequence[LayerDescription]) -> list[LayerDescription]:
    """Returns the layers whose experts are in the host's memory."""
    return [layer for layer in layers if (experts := find_experts(layer)) is not None and experts.is_on_host]
