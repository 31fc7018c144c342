"""What every model family provides: its architectures, its configuration and its weight names in our terms."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.parameters import Shape

HEAD_NAME = "lm_head.weight"
NO_FIELDS = HfConfig({})
TOWERS = re.compile(
    r"(model\.)?(visual|vision_(tower|model|encoder)|audio_tower|embed_(vision|audio)|multi_modal_projector|connector|"
    r"mm_projector|mlp1|image_newline)(\..*)?"
)
"""Names of tensors of what makes rows of images and sounds."""


@dataclass(frozen=True)
class Stack:
    """A tensor of a checkpoint with all parts of a source: the matrices of experts or heads [groups, rows, columns], or
    their biases.

    It may also be one matrix, of all groups one after another. Each group has equally many parts, one after another
    from `first_row` on, of which it has each `step`-th row. `is_transposed`: plain numbers are [groups, columns, rows],
    unless their shape shows that they are not; blocks never are. The first `num_turned` rows of a
    group are the columns of its part.
    """

    name: str
    shape: Shape
    first_row: int = 0
    step: int = 1
    is_transposed: bool = False
    num_turned: int = 0

    def is_transposed_in(self, shape: Sequence[int]) -> bool:
        """True if a tensor of plain numbers with this shape is transposed."""
        return self.is_transposed and (tuple(shape) != self.shape or self.shape[1] == self.shape[2])


class Parts(NamedTuple):
    """How many parts a source has, and how many rows after one the next begins in our parameter."""

    count: int
    distance: int


ONE_PART = Parts(1, 0)


@dataclass(frozen=True)
class InterleavedHeads:
    """Heads in which neighbours of `unit` rows each are rotated together in the checkpoint, where we rotate halves;
    their rotated rows are the first ones, or those from `first` on."""

    num_heads: int
    num_rotated: int
    unit: int = 1
    first: int = 0


RowFactors = tuple[tuple[float, int], ...]
"""Factors, and how many rows each multiplies, one after another. The rows become plain numbers."""

Change = Literal["transposed", "reshaped", "channels_last"] | InterleavedHeads | RowFactors | None


@dataclass(frozen=True)
class Source:
    """Where a checkpoint has rows of our parameter `target`, from `first_row` on, in one or more parts.

    `name` is that of a tensor, and `shape` its shape; `{}` in it is the number of a part, of which each is a tensor. It
    is empty if only a stack has the rows. `others` are looked for where `name` is absent: of two tied tensors a
    checkpoint may hold either, and it may have the parts in a stack. `change`: how the rows differ from ours;
    transposed ones are [in, out] in the checkpoint where we have [out, in], those with `channels_last` have pixel after
    pixel where we have channel after channel, reshaped ones have any shape of as many values.
    """

    name: str
    shape: Shape
    target: str
    first_row: int = 0
    others: tuple[str | Stack, ...] = ()
    parts: Parts = ONE_PART
    change: Change = None

    @property
    def num_rows(self) -> int:
        """The rows of a part."""
        return self.shape[-1] if self.change == "transposed" else self.shape[0]

    @property
    def stacks(self) -> list[Stack]:
        return [each for each in self.others if isinstance(each, Stack)]

    @property
    def names(self) -> list[str]:
        """The names of tensors that are no stacks."""
        return [each for each in (self.name, *self.others) if isinstance(each, str) and each]

    def of_parts(self, name: str) -> Iterator[str]:
        """Yields the names of the tensors of all parts."""
        return map(name.format, range(self.parts.count))


class StoredSource(NamedTuple):
    """A source as one tensor has it: some of its parts, or all in a stack."""

    source: Source
    parts: range
    stack: Stack | None = None

    @property
    def first_rows(self) -> list[int]:
        """The first row of each part in our parameter."""
        return [self.source.first_row + part * self.source.parts.distance for part in self.parts]


Describe = Callable[[HfConfig, int], ModelDescription]
ListSources = Callable[[Any], list[Source]]
"""Its argument is what `Describe` returns, or the `TowerDescription` of a vision tower."""


@dataclass(frozen=True, kw_only=True)
class TensorNames:
    """The names of tensors in a checkpoint. `prefix` begins names in one of the whole model, but not of the bare
    decoder. `ignored` matches names that may be present but are not needed."""

    list_sources: ListSources
    prefix: str
    ignored: re.Pattern[str]

    def ignores(self, name: str) -> bool:
        return self.ignored.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True)
class Family(TensorNames):
    """A model family.

    `model_types` decide if config.json gives no architecture. `describe` raises `BootError` for an unsupported model;
    its arguments are config.json and the longest context to serve, in tokens. `mtp_tensor`: a tensor of a head of
    multi-token prediction, whose others `list_sources` knows; `{}` in it is the number of the model's layers.
    """

    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    describe: Describe
    mtp_tensor: str = ""

    def ignores(self, name: str) -> bool:
        return super().ignores(name) or TOWERS.fullmatch(name) is not None

    def like(
        self,
        architectures: str,
        model_types: str,
        describe: Describe,
        list_sources: ListSources | None = None,
        defaults: HfConfig = NO_FIELDS,
        **others: Any,
    ) -> "Family":
        """Returns the family of these names, separated by spaces, that has everything else in common with this one.

        `defaults`: the values of fields that config.json may lack.
        """

        def with_defaults(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
            return describe(defaults.overridden(hf_config), max_model_len)

        names = {"architectures": tuple(architectures.split()), "model_types": tuple(model_types.split())}
        return replace(self, **names, describe=with_defaults, list_sources=list_sources or self.list_sources, **others)


def embedding_source(name: str, model: ModelDescription) -> Source:
    """Returns the source of the token embedding, which a tied head shares."""
    shape = (model.vocab_size, model.hidden_size)
    return Source(name, shape, "embedding", others=(HEAD_NAME,) if model.has_tied_head else ())


def head_sources(model: ModelDescription) -> list[Source]:
    """Returns the source of the head; a tied head has none."""
    shape = (model.vocab_size, model.hidden_size)
    return [] if model.has_tied_head else [Source(HEAD_NAME, shape, "head")]


def linear_sources(
    name: str, target: str, num_out: int, num_in: int, has_bias: bool, first_row: int = 0
) -> list[Source]:
    """Returns the sources of a linear layer's weight [out, in] and bias."""
    sources = [Source(f"{name}.weight", (num_out, num_in), f"{target}.weight", first_row)]
    if has_bias:
        sources.append(Source(f"{name}.bias", (num_out,), f"{target}.bias", first_row))
    return sources


def renamed(sources: list[Source], names: Mapping[str, str]) -> list[Source]:
    """Returns the sources with parts of all their names replaced by others."""

    def rename(name: str) -> str:
        for part, other in names.items():
            name = name.replace(part, other)
        return name

    def rename_other(other: str | Stack) -> str | Stack:
        return rename(other) if isinstance(other, str) else replace(other, name=rename(other.name))

    return [
        replace(source, name=rename(source.name), others=tuple(map(rename_other, source.others))) for source in sources
    ]


def with_other_names(sources: list[Source], names: Mapping[str, str]) -> list[Source]:
    """Returns the sources, which may also have the names that `renamed` gives them."""
    return [
        replace(source, others=(*source.others, other.name, *other.others))
        for source, other in zip(sources, renamed(sources, names), strict=True)
    ]
