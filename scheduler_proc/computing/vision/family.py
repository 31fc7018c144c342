"""What every family of towers provides: its description, the names of its tensors, and its computation."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.families.family import Change, InterleavedHeads, Source, TensorNames
from scheduler_proc.computing.model.parameters import Parameter
from scheduler_proc.computing.vision.description import PATCHES, TowerDescription
from scheduler_proc.computing.vision.view_tower import TowerParts, ViewTower

PLACE = re.compile(r"(layers|deepstack)\.(\d+)\.(?:(\d+)\.)?(.+)")
NOT_USED = re.compile(
    r"(?!(model\.)?(vis|connector|multi_modal|mlp1|v\.|mm\.)).*|(model\.)?vision_tower\.(vision_model\.)?head\..*"
)
"""Tensors of the decoder in a checkpoint of the whole model, and a head that pools."""


class Exact(NamedTuple):
    """The whole name of a tensor, and how it differs from our parameter (`Source.change`)."""

    name: str
    change: Change = None


class Rotated(NamedTuple):
    """The name of heads in which neighbouring rows, or quarters, are rotated together, where we rotate halves."""

    name: str
    is_in_quarters: bool = False


Names = dict[str, str | Sequence[str | Rotated] | Exact]
"""The names of tensors by those of our parameters, both without `.weight` and `.bias` unless they are exact. Names in
layers follow that of `layers`, in which `{}` is the number of the layer; those of projectors of earlier layers that of
`deepstack`, with the number of the layer and that of the projector. Several are parts of ours of equal size, one after
another."""


@dataclass(frozen=True)
class TowerFamily:
    """A family of towers.

    `describe` gets config.json, or what `mmproj.py` makes of a GGUF file's metadata, and raises `BootError` for what is
    not supported. `namings`: a checkpoint has the first one of which it has the patches. `changes`: what is to be
    undone in a GGUF file, fields of `HfTensor` by a tensor's name without layer and suffix.
    """

    describe: Callable[[HfConfig], TowerDescription]
    namings: tuple[Names, ...]
    make: Callable[[TowerParts], ViewTower]
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def names_in(self, present: Mapping[str, object]) -> Names:
        """Returns the naming of a checkpoint with these tensors; the first if it fits none, for the error."""
        fitting = (names for names in self.namings if f"{names[PATCHES]}.weight" in present)
        return next(fitting, self.namings[0])


def tensor_names(names: Names) -> TensorNames:
    """Returns the naming as loading needs it."""

    def list_sources(tower: TowerDescription) -> list[Source]:
        return [source for parameter in tower.parameters for source in _sources_of(tower, parameter, names)]

    return TensorNames(list_sources=list_sources, prefix="", ignored=NOT_USED)


def _sources_of(tower: TowerDescription, parameter: Parameter, names: Names) -> list[Source]:
    place, name = "", parameter.name
    if match := PLACE.fullmatch(name):
        place = str(names[match[1]]).format(match[2], match[3])
        name = match[4] if match[1] == "layers" else f"{match[1]}.{match[4]}"
    base, _, suffix = name.rpartition(".")
    if suffix not in ("weight", "bias"):
        base, suffix = name, ""
    theirs, (num_rows, *columns) = names.get(name) or names[base], parameter.shape
    if isinstance(theirs, Exact):
        return [Source(f"{place}{theirs.name}", parameter.shape, parameter.name, change=theirs.change)]
    parts = (theirs,) if isinstance(theirs, str) else theirs
    shape = (num_rows // len(parts), *columns)
    found: list[Source] = []
    for number, part in enumerate(parts):
        change: Change = "reshaped" if base == PATCHES and columns else None
        if isinstance(part, Rotated):
            head_dim = tower.head_dim
            change = InterleavedHeads(shape[0] // head_dim, head_dim, head_dim // 4 if part.is_in_quarters else 1)
            part = part.name
        found.append(Source(f"{place}{part}.{suffix}", shape, parameter.name, number * shape[0], change=change))
    return found
