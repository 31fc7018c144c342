"""The parameters that blocks declare: name, shape, kind, and each rank's part. Plain values, no torch.

Linears that read the residual stream are divided by their outputs, those that write it by their inputs (Megatron-LM,
arXiv:1909.08053, section 3); embedding and head by the entries of the vocabulary.
"""

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from messages.errors import BootError

Shape = tuple[int, ...]

Role = Literal["linear", "experts", "router", "embedding", "tied", "positions", "norm", "bias", "float32"]
"""`linear`: the weight of a linear layer, [out, in]. `experts`: the weights of several, one after another. `router`:
the weight of a linear that chooses experts, never quantized. `embedding`: the table of tokens, looked up by rows.
`tied`: one that is also the head. `positions`: the table of positions. `float32`: a vector that is never rounded."""


@dataclass(frozen=True)
class ByRows:
    """A rank has its share of each section; a section is (number of units, rows per unit)."""

    sections: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ByColumns:
    """A rank has its share of the columns."""


Split = ByRows | ByColumns | None
"""How a parameter is divided among ranks; None: each rank has all of it."""


@dataclass(frozen=True)
class Part:
    """A rank's part of a parameter: ranges of its rows, stored one after another, and columns of these rows.

    `shape` is the part's; it may have more rows than the ranges, which are then followed by padding.
    """

    shape: Shape
    rows: tuple[range, ...]
    columns: slice = field(default_factory=lambda: slice(None))


@dataclass(frozen=True)
class Parameter:
    """A parameter of the whole model. `num_stacked`: how many weights it has, one after another.

    `is_on_host`: it is in the host's memory, whatever device computes the model.
    """

    name: str
    shape: Shape
    role: Role
    split: Split = None
    num_stacked: int = 1
    is_on_host: bool = False

    def stacked_rows(self, part: Part) -> int:
        """Returns the rows of each weight in a rank's part, which has some of the weights or some rows of all."""
        if isinstance(self.split, ByRows) and self.split.sections[0][0] == self.num_stacked:
            return self.split.sections[0][1]
        return part.shape[0] // self.num_stacked

    def part(self, rank: int, num_ranks: int) -> Part:
        """Returns the rank's part of the parameter."""
        all_rows = (range(self.shape[0]),)
        match self.split if num_ranks > 1 else None:
            case None:
                return Part(self.shape, all_rows)
            case ByColumns():
                share = _share(self.shape[1], 1, 0, rank, num_ranks)
                return Part((self.shape[0], len(share)), all_rows, slice(share.start, share.stop))
            case ByRows(sections):
                first_rows = accumulate((num * unit for num, unit in sections), initial=0)
                sections_with_first = zip(sections, first_rows, strict=False)
                rows = tuple(_share(*section, first, rank, num_ranks) for section, first in sections_with_first)
                num_rows = sum(-(-num // num_ranks) * unit for num, unit in sections)
                return Part((num_rows, *self.shape[1:]), rows)


def _share(num_units: int, unit: int, first_row: int, rank: int, num_ranks: int) -> range:
    """Returns the rank's rows of a section that begins at `first_row`; the last ranks' shares may be smaller.

    If there are fewer units than ranks, several ranks share the same unit.
    """
    each = -(-num_units // num_ranks)
    first = rank * num_units // num_ranks if num_units < num_ranks else rank * each
    return range(first_row + first * unit, first_row + min(first + each, num_units) * unit)


def divide(number: int, num_ranks: int, what: str) -> int:
    """Returns the part of one rank. Raises `BootError` unless all have as many."""
    if number % num_ranks:
        raise BootError(f"--tensor-parallel {num_ranks}: it does not divide the model's {number} {what}")
    return number // num_ranks


def linear_parameters(name: str, num_out: int, num_in: int, has_bias: bool, split: Split) -> list[Parameter]:
    """Returns the weight and, if it has one, the bias of a linear layer. The bias of a split by columns is whole."""
    parameters = [Parameter(f"{name}.weight", (num_out, num_in), "linear", split)]
    if has_bias:
        bias_split = split if isinstance(split, ByRows) else None
        parameters.append(Parameter(f"{name}.bias", (num_out,), "bias", bias_split))
    return parameters
