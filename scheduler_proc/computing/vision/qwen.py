"""What the towers of Qwen2.5-VL and Qwen3-VL have in common: patches of a film, rotary positions, merged squares."""

from typing import Any

import torch
from torch import Tensor

from kernels.formats.plain import PlainWeight
from scheduler_proc.computing.hf_config import MAX_LAYERS, HfConfig
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.description import DenseMlpDescription, LayerDescription, NormDescription
from scheduler_proc.computing.model.parameters import Parameter
from scheduler_proc.computing.vision.axial import AxialTower, describe_axial
from scheduler_proc.computing.vision.description import NUM_CHANNELS, PATCHES
from scheduler_proc.computing.vision.family import Exact, Names
from scheduler_proc.computing.vision.view_tower import TowerParts

SECOND_PATCHES = "second_patches"
"""The kernel of a film's second frame, which GGUF files have as a tensor of its own."""

MMPROJ_QWEN: Names = {
    SECOND_PATCHES: Exact("v.patch_embd.weight.1", "reshaped"),
    "projector.0": "mm.0",
    "projector.1": "mm.2",
}


def describe_qwen(vision: HfConfig, norm: NormDescription, mlp: DenseMlpDescription) -> dict[str, Any]:
    """Returns the fields of a `TowerDescription` but projectors and those of single families."""
    size, num_frames = norm.size, vision.count("temporal_patch_size", 2, most=2)
    attention = describe_axial(vision, has_bias=True, heads="num_heads")
    layer = LayerDescription(mixers=(attention,), mlp=mlp, attention_norm=norm, mlp_norm=norm)
    patch_size, num_layers = vision.count("patch_size", most=256), vision.count("depth", most=MAX_LAYERS)
    second = Parameter(f"{SECOND_PATCHES}.weight", (size, NUM_CHANNELS * patch_size**2), "positions")
    return {
        "hidden_size": size,
        "layers": (layer,) * num_layers,
        "patch_size": patch_size,
        "merged_side": _merge_side(vision),
        "num_frames": num_frames,
        "kept_after": (num_layers,),
        "post_norm": norm,
        **({"others": (second,), "patch_role": "positions"} if num_frames == 1 else {}),
    }


def _merge_side(vision: HfConfig) -> int:
    return vision.count("spatial_merge_size", 2, most=16)


def merged_sizes(vision: HfConfig) -> tuple[int, int, int]:
    """Returns the sizes of a projector, which reads the patches of a square."""
    size = vision.count("hidden_size") * _merge_side(vision) ** 2
    return size, size, vision.count("out_hidden_size")


class QwenTower(AxialTower):
    def __init__(self, parts: TowerParts):
        _join_frames(parts.weights)
        super().__init__(parts)

    def _patches_of(self, view: Tensor) -> Tensor:
        """Returns the pixels of each patch, [T, channels * frames * pixels]: all frames show the same."""
        pixels = super()._patches_of(view).unflatten(1, (NUM_CHANNELS, 1, -1))
        return pixels.expand(-1, -1, 2, -1).flatten(1)


def _join_frames(weights: Weights) -> None:
    """Joins the kernels of both frames, which a GGUF file has apart, to one as a checkpoint has it."""
    second = weights.pop(f"{SECOND_PATCHES}.weight", None)
    if second is None:
        return
    name = f"{PATCHES}.weight"
    kernels = [weight.stored.unflatten(1, (NUM_CHANNELS, -1)) for weight in (weights[name], second)]
    weights[name] = PlainWeight(torch.stack(kernels, 2).flatten(1))
