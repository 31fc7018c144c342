"""What every format of weight files provides."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from kernels.arguments.block_rows import BlockRows, TransposedBlockRows
from messages.errors import BootError
from runtime.model_files import find_other_content

NUMBERS = ""
"""The form of plain numbers."""

StoredTensor = Tensor | BlockRows | TransposedBlockRows
"""A tensor of a file, as numbers or in blocks."""


class TensorFile(Protocol):
    """One file of named tensors. Both methods raise `BootError` if it cannot be read."""

    def forms(self) -> Mapping[str, str]:
        """Returns the forms of all tensors by name: keys of `kernels.arguments.block_rows.FORMS`, or `NUMBERS`."""
        ...

    def read(self, names: list[str]) -> Iterator[tuple[str, StoredTensor]]:
        """Yields these tensors in this order, each backed by the mapped file until it is copied elsewhere."""
        ...


def unreadable(path: Path, error: Exception) -> BootError:
    """Returns the error of a file that cannot be read, with a message about its real type if it is known."""
    other = find_other_content(path)
    if other is not None:
        return BootError(f"{path}: {other}")
    reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
    return BootError(f"{path}: cannot be read, it may be cut off or damaged: {reason:.300}")


def with_whole_heads(rows: Tensor, num_heads: int, num_interleaved: int | None = None, first: int = 0) -> Tensor:
    """Returns query or key rows, in which those of a head's halves alternate, in another order: half after half.

    With `num_interleaved` this is so in that many rows of each head, from `first` on. With 0 heads they are not in that
    order, and stay as they are.
    """
    if not num_heads:
        return rows
    heads = rows.unflatten(0, (num_heads, -1))
    end = heads.shape[1] if num_interleaved is None else first + num_interleaved
    halves = heads[:, first:end].unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
    return torch.cat((heads[:, :first], halves, heads[:, end:]), dim=1).flatten(0, 1)
