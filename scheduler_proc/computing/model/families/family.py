"""What every model family provides: its architectures, its configuration and its weight names in our terms."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.parameters import Shape

HEAD_NAME = "lm_head.weight"


@dataclass(frozen=True)
class Stack:
    """A tensor of a checkpoint with the matrices of all experts [experts, rows, columns], or their biases.

    It may also be one matrix, of all experts or heads one after another. It has an expert's rows from `first_row` on,
    each `step`-th. `is_transposed`: plain numbers are [experts, columns, rows]; blocks never are.
    """

    name: str
    shape: Shape
    expert: int
    first_row: int = 0
    step: int = 1
    is_transposed: bool = False


RowFactors = tuple[tuple[float, int], ...]
"""Factors, and how many rows each multiplies, one after another."""


@dataclass(frozen=True)
class Source:
    """One tensor of a checkpoint, and where it goes: rows of our parameter `target` from `first_row` on.

    `shape` is the checkpoint's. `is_transposed`: the checkpoint has [in, out] where we have [out, in]. `other_name` is
    looked for where `name` is absent: of two tied tensors a checkpoint may hold either. `interleaved_heads`: the number
    of heads if neighbouring rows of each are rotated together in the checkpoint, 0 if its halves are, as we do; this is
    so in the first `num_interleaved` rows of each head, or in all. `stack`: the tensor that has these rows if there is
    none of this name, which may be empty; `other_stack`: the tensor that has them if there is none of that name either.
    `factors`: those of all rows, unless they are 1; then they are plain numbers here, also if blocks are stored.
    """

    name: str
    shape: Shape
    target: str
    first_row: int = 0
    is_transposed: bool = False
    other_name: str = ""
    interleaved_heads: int = 0
    num_interleaved: int | None = None
    stack: Stack | None = None
    other_stack: Stack | None = None
    factors: RowFactors = ()

    @property
    def num_rows(self) -> int:
        return self.shape[-1] if self.is_transposed else self.shape[0]

    @property
    def is_multiplied(self) -> bool:
        return any(factor != 1 for factor, _ in self.factors)


Describe = Callable[[HfConfig, int], ModelDescription]
ListSources = Callable[[ModelDescription], list[Source]]


@dataclass(frozen=True)
class Family:
    """A model family.

    `model_types` decide if config.json gives no architecture. `describe` raises `BootError` for an unsupported model;
    its arguments are config.json and the longest context to serve, in tokens. `prefix` begins names in a checkpoint
    of the whole model, but not of the bare decoder. `ignored` matches names that may be present but are not needed.
    `can_have_mtp`: `list_sources` knows the tensors of a head of multi-token prediction.
    """

    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    describe: Describe
    list_sources: ListSources
    prefix: str
    ignored: re.Pattern[str]
    can_have_mtp: bool = False

    def like(
        self,
        architectures: str,
        model_types: str,
        describe: Describe,
        list_sources: ListSources | None = None,
        **others: Any,
    ) -> "Family":
        """Returns the family of these names, separated by spaces, that has everything else in common with this one."""
        names = {"architectures": tuple(architectures.split()), "model_types": tuple(model_types.split())}
        return replace(self, **names, describe=describe, list_sources=list_sources or self.list_sources, **others)


def embedding_source(name: str, model: ModelDescription) -> Source:
    """Returns the source of the token embedding, which a tied head shares."""
    shape = (model.vocab_size, model.hidden_size)
    return Source(name, shape, "embedding", other_name=HEAD_NAME if model.has_tied_head else "")


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
    """Returns the sources with parts of their names, and of their stacks', replaced by others."""

    def rename(name: str) -> str:
        for part, other in names.items():
            name = name.replace(part, other)
        return name

    return [
        replace(
            source,
            name=rename(source.name),
            stack=source.stack and replace(source.stack, name=rename(source.stack.name)),
        )
        for source in sources
    ]
