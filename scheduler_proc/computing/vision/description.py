"""Describes a vision tower as plain values: patches, layers like a decoder's, and projectors."""

from dataclasses import dataclass
from typing import Literal

from scheduler_proc.computing.model.attention_description import EncoderAttentionDescription
from scheduler_proc.computing.model.blocks.layer import layer_parameters
from scheduler_proc.computing.model.blocks.norm import norm_parameters
from scheduler_proc.computing.model.description import LayerDescription, NormDescription
from scheduler_proc.computing.model.parameters import Parameter, Role, linear_parameters

NUM_CHANNELS = 3
PATCHES, POSITIONS, CLASS_TOKEN, PRE_NORM, POST_NORM = "patches", "positions", "class_token", "pre_norm", "post_norm"


@dataclass(frozen=True, kw_only=True)
class ProjectorDescription:
    """Computes rows of `sizes[-1]` values from rows of `sizes[0]`: a norm, if there is one, then linears with an
    activation between them. `name` begins the names of its parameters."""

    sizes: tuple[int, ...]
    name: str = "projector"
    norm: NormDescription | None = None
    activation: Literal["tanh", "exact"] = "exact"
    has_bias: bool = True

    @property
    def linears(self) -> list[str]:
        return [f"{self.name}.{index}" for index in range(len(self.sizes) - 1)]

    @property
    def parameters(self) -> list[Parameter]:
        found = norm_parameters(f"{self.name}.norm", self.norm) if self.norm else []
        for name, num_in, num_out in zip(self.linears, self.sizes, self.sizes[1:], strict=False):
            found += linear_parameters(name, num_out, num_in, self.has_bias, split=None)
        return found


@dataclass(frozen=True, kw_only=True)
class TowerDescription:
    """A vision transformer and its projectors.

    `num_frames`: of the film that a patch is part of; an image is all of its frames. `num_positions`: rows of the
    table of learned positions, 0 if there is none; a class token has the first one. `kept_after`: after how many layers
    hidden states are read, in ascending order; later layers are not described. `post_norm` is applied to those of the
    last layer. `merged_side`: the side of the squares of patches that become one row, before a projector or in it.
    `row_width`: the numbers of a row of an encoding. `others`: further parameters of the family.
    """

    hidden_size: int
    layers: tuple[LayerDescription, ...]
    patch_size: int
    kept_after: tuple[int, ...]
    projectors: tuple[ProjectorDescription, ...]
    row_width: int
    merged_side: int = 1
    num_frames: int = 1
    num_positions: int = 0
    has_class_token: bool = False
    has_patch_bias: bool = True
    patch_role: Role = "router"
    """`positions` keeps the patches' weight as plain numbers."""
    pre_norm: NormDescription | None = None
    post_norm: NormDescription | None = None
    others: tuple[Parameter, ...] = ()

    @property
    def head_dim(self) -> int:
        """The values of a head, the same in all layers."""
        attention = self.layers[0].find(EncoderAttentionDescription)
        assert attention is not None
        return attention.head_dim

    @property
    def patch_values(self) -> int:
        return NUM_CHANNELS * self.num_frames * self.patch_size**2

    @property
    def parameters(self) -> list[Parameter]:
        size = self.hidden_size
        found = [Parameter(f"{PATCHES}.weight", (size, self.patch_values), self.patch_role)]
        found += [Parameter(f"{PATCHES}.bias", (size,), "bias")] if self.has_patch_bias else []
        found += [Parameter(POSITIONS, (self.num_positions, size), "positions")] if self.num_positions else []
        found += [Parameter(CLASS_TOKEN, (1, size), "positions")] if self.has_class_token else []
        for name, norm in ((PRE_NORM, self.pre_norm), (POST_NORM, self.post_norm)):
            found += norm_parameters(name, norm) if norm else []
        for index, layer in enumerate(self.layers):
            found += layer_parameters(f"layers.{index}", layer, size)
        for projector in self.projectors:
            found += projector.parameters
        return [*found, *self.others]


@dataclass(frozen=True)
class TowerShard:
    """A whole tower as loading has a rank's part of a model (`model/sharding.py`): it is not divided."""

    whole: TowerDescription
    rank: int = 0
    num_ranks: int = 1
