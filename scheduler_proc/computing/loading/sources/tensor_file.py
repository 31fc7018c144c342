"""What every format of weight files provides."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

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
    return BootError(f"{path}: cannot be read, it may be cut off or damaged: {reason}")
