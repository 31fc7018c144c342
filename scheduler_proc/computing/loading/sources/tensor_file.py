"""What every format of weight files provides."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from torch import Tensor

from messages.errors import BootError
from runtime.model_files import find_other_content


class TensorFile(Protocol):
    """One file of named tensors. Both methods raise `BootError` if it cannot be read."""

    def __init__(self, path: Path): ...

    def names(self) -> list[str]: ...

    def read(self, names: list[str]) -> Iterator[tuple[str, Tensor]]:
        """Yields these tensors in this order, each backed by the mapped file until it is copied elsewhere."""
        ...


def unreadable(path: Path, error: Exception) -> BootError:
    """Returns the error of a file that cannot be read, with a message about its real type if it is known."""
    other = find_other_content(path)
    if other is not None:
        return BootError(f"{path}: {other}")
    reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
    return BootError(f"{path}: cannot be read, it may be cut off or damaged: {reason}")
