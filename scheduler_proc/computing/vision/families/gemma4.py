"""Gemma 4: tables of positions for lines and columns, clipped linears, squares of patches averaged.

Shape legend: T patches, E embedding size, N squares of patches that become rows, I inputs, O outputs.
"""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from kernels.formats.weight_format import Linear, Weight
from kernels.operations.gelu import GeluKind
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import EncoderAttentionDescription
from scheduler_proc.computing.model.blocks.weights import Weights, pop_tensor
from scheduler_proc.computing.model.description import (
    DenseMlpDescription,
    LayerDescription,
    NormDescription,
    RopeDescription,
)
from scheduler_proc.computing.model.parameters import Parameter
from scheduler_proc.computing.vision.axial import AxialTower, axial_theta, places_of
from scheduler_proc.computing.vision.description import PATCHES, POSITIONS, ProjectorDescription, TowerDescription
from scheduler_proc.computing.vision.family import Exact, Names, Rotated, TowerFamily
from scheduler_proc.computing.vision.mmproj import MMPROJ_NAMES
from scheduler_proc.computing.vision.siglip import find_section
from scheduler_proc.computing.vision.view_tower import Grid, TowerParts, shuffle_pixels

STD_BIAS, STD_SCALE = "std_bias", "std_scale"
CLIPPED = {
    "qkv": ("query", "key", "value"),
    "attention_out": ("attention_out",),
    "mlp_in": ("gate", "up"),
    "mlp_out": ("mlp_out",),
}
"""The linears of a layer, and the linears of the checkpoint that each consists of, one after another."""
LIMITS = ("input_min", "input_max", "output_min", "output_max")


def describe(config: HfConfig) -> TowerDescription:
    vision, text = find_section(config, "vision_config"), find_section(config, "text_config")
    size, num_heads = vision.count("hidden_size"), vision.count("num_attention_heads")
    vision.choice("num_key_value_heads", [num_heads], num_heads)
    vision.choice("hidden_activation", ["gelu_pytorch_tanh"], "gelu_pytorch_tanh")
    eps, head_dim = vision.number("rms_norm_eps", 1e-6), vision.optional_count("head_dim") or size // num_heads
    if head_dim % 4:
        raise vision.refuse("head_dim", head_dim, "it must be a multiple of 4")
    norm = NormDescription(kind="rms", size=size, eps=eps)
    attention = EncoderAttentionDescription(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        scale=1.0,
        rope=RopeDescription(theta=axial_theta(vision, 100.0)),
        qk_norm=NormDescription(kind="rms", size=head_dim, eps=eps),
        norms_values=True,
    )
    layer = LayerDescription(
        mixers=(attention,),
        mlp=DenseMlpDescription(size=vision.count("intermediate_size"), activation="gelu_tanh_gated"),
        attention_norm=norm,
        attention_out_norm=norm,
        mlp_norm=norm,
        mlp_out_norm=norm,
    )
    num_layers, row_width = vision.num_layers, text.count("hidden_size")
    others: list[Parameter] = []
    if vision.flag("standardize", False):
        others += [Parameter(name, (size,), "float32") for name in (STD_BIAS, STD_SCALE)]
    if vision.flag("use_clipped_linears", False):
        others += [Parameter(name, (1,), "float32") for index in range(num_layers) for name in _limit_names(index)]
    return TowerDescription(
        hidden_size=size,
        layers=(layer,) * num_layers,
        patch_size=vision.count("patch_size", 16, most=256),
        kept_after=(num_layers,),
        projectors=(ProjectorDescription(sizes=(size, row_width), has_bias=False),),
        row_width=row_width,
        merged_side=vision.count("pooling_kernel_size", 3, most=16),
        num_positions=2 * vision.count("position_embedding_size", 10240, most=1 << 20),
        has_patch_bias=False,
        others=tuple(others),
    )


def _limit_names(layer: int) -> list[str]:
    return [f"layers.{layer}.{part}.{limit}" for parts in CLIPPED.values() for part in parts for limit in LIMITS]


class Limits(NamedTuple):
    input_min: float
    input_max: float
    output_min: float
    output_max: float


class ClippedWeight:
    """A weight whose inputs and outputs are clipped; the parts of its rows, of equal size, have limits of their own.

    It has as much of a `Weight` as the linears of a tower use.
    """

    def __init__(self, weight: Weight, limits: list[Limits]):
        self._weight, self._limits = weight, limits
        self.stored = weight.stored

    def linear(self, bias_O: Tensor | None, activation: GeluKind | None) -> Linear:
        assert activation is None
        linear, num_parts = self._weight.linear(bias_O, None), len(self._limits)

        def compute(x_TI: Tensor, out_TO: Tensor | None = None) -> Tensor:
            first, *others = self._limits
            y_TO = linear(x_TI.clamp(first.input_min, first.input_max), out_TO)
            parts = y_TO.chunk(num_parts, 1)
            for number, limits in enumerate(others, start=1):
                if limits[:2] != first[:2]:
                    alone_TO = linear(x_TI.clamp(limits.input_min, limits.input_max), None)
                    parts[number].copy_(alone_TO.chunk(num_parts, 1)[number])
            for part, limits in zip(parts, self._limits, strict=True):
                part.clamp_(limits.output_min, limits.output_max)
            return y_TO

        return compute


def _clip(weights: Weights, num_layers: int) -> None:
    """Gives the linears of all layers their limits, if the checkpoint has some."""
    for index in range(num_layers):
        for linear, parts in CLIPPED.items():
            names = [[f"layers.{index}.{part}.{limit}" for limit in LIMITS] for part in parts]
            if names[0][0] in weights:
                limits = [Limits(*(float(pop_tensor(weights, name)) for name in of_part)) for of_part in names]
                weight = f"layers.{index}.{linear}.weight"
                weights[weight] = cast("Weight", ClippedWeight(weights[weight], limits))


class Gemma4Tower(AxialTower):
    def __init__(self, parts: TowerParts):
        vision, weights = find_section(parts.config, "vision_config"), parts.weights
        _clip(weights, len(parts.description.layers))
        self._standard = weights.pop(STD_BIAS, None), weights.pop(STD_SCALE, None)
        super().__init__(parts._replace(mean=[0.5] * 3, std=[0.5] * 3))
        self._eps = vision.number("rms_norm_eps", 1e-6)

    def _places(self, grid: Grid) -> Tensor:
        """Returns the column and the line of each patch."""
        return places_of(grid).flip(1)

    def _positions(self, table: Tensor, grid: Grid) -> Tensor:
        of_columns, of_lines = table.chunk(2)
        if max(grid) > len(of_lines):
            raise ValueError(f"a view of {grid[0]} x {grid[1]} patches, but the tower has {len(of_lines)} positions")
        return (of_columns[None, : grid[1]] + of_lines[: grid[0], None]).flatten(0, 1)

    def _merge(self, hidden_TE: Tensor, grid: Grid) -> Tensor:
        """Returns the mean of each square, [N, E], standardized and normalized; in between its values are large."""
        squares_NSE = shuffle_pixels(hidden_TE, grid, self._side).unflatten(1, (self._side**2, -1))
        mean_NE = squares_NSE.float().mean(1) * hidden_TE.shape[1] ** 0.5
        bias, scale = self._standard
        if bias is not None and scale is not None:
            mean_NE = (mean_NE - bias.stored) * scale.stored
        return (mean_NE * torch.rsqrt(mean_NE.square().mean(-1, keepdim=True) + self._eps)).to(hidden_TE.dtype)


def _limits_of(names: dict[str, str]) -> Names:
    """Returns the names of limits from the names of linears."""
    return {f"{part}.{limit}": Exact(f"{name}.{limit}", "reshaped") for part, name in names.items() for limit in LIMITS}


def _rotated(*names: str) -> list[Rotated]:
    return [Rotated(name, is_in_quarters=True) for name in names]


LINEARS = {
    **{part: f"self_attn.{part[0]}_proj" for part in ("query", "key", "value")},
    "attention_out": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "mlp_out": "mlp.down_proj",
}


def _names(prefix: str) -> Names:
    tower, linears = f"{prefix}vision_tower.", {part: f"{name}.linear" for part, name in LINEARS.items()}
    return {
        **_limits_of(LINEARS),
        PATCHES: f"{tower}patch_embedder.input_proj",
        f"{PATCHES}.weight": Exact(f"{tower}patch_embedder.input_proj.weight", "channels_last"),
        POSITIONS: Exact(f"{tower}patch_embedder.position_embedding_table", "reshaped"),
        "layers": f"{tower}encoder.layers.{{}}.",
        "qkv": [*_rotated(linears["query"], linears["key"]), linears["value"]],
        "query_norm": _rotated("self_attn.q_norm"),
        "key_norm": _rotated("self_attn.k_norm"),
        "attention_out": linears["attention_out"],
        "mlp_in": [linears["gate"], linears["up"]],
        "mlp_out": linears["mlp_out"],
        "attention_norm": "input_layernorm",
        "attention_out_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_out_norm": "post_feedforward_layernorm",
        STD_BIAS: Exact(f"{tower}std_bias"),
        STD_SCALE: Exact(f"{tower}std_scale"),
        "projector.0": f"{prefix}embed_vision.embedding_projection",
    }


MMPROJ_LINEARS = {"query": "attn_q", "key": "attn_k", "value": "attn_v", "attention_out": "attn_out"}
MMPROJ_LINEARS |= {"gate": "ffn_gate", "up": "ffn_up", "mlp_out": "ffn_down"}

MMPROJ: Names = {
    **MMPROJ_NAMES,
    **_limits_of(MMPROJ_LINEARS),
    "qkv": [*_rotated("attn_q", "attn_k"), "attn_v"],
    "query_norm": _rotated("attn_q_norm"),
    "key_norm": _rotated("attn_k_norm"),
    "mlp_in": ["ffn_gate", "ffn_up"],
    "attention_out_norm": "attn_post_norm",
    "mlp_out_norm": "ffn_post_norm",
    STD_BIAS: Exact("v.std_bias"),
    STD_SCALE: Exact("v.std_scale"),
    "projector.0": "mm.input_projection",
}

FAMILY = TowerFamily(describe=describe, namings=(_names("model."), _names(""), MMPROJ), make=Gemma4Tower)
