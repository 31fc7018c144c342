"""Tensors in a file of the `safetensors` library."""

from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from scheduler_proc.computing.loading.sources.tensor_file import NUMBERS, unreadable


class SafetensorsFile:
    """See `TensorFile`."""

    def __init__(self, path: Path):
        self._path = path

    def forms(self) -> dict[str, str]:
        try:
            with safe_open(self._path, framework="pt") as file:
                return dict.fromkeys(file.keys(), NUMBERS)
        except (SafetensorError, OSError) as error:
            raise unreadable(self._path, error) from None

    def read(self, names: list[str]) -> Iterator[tuple[str, Tensor]]:
        try:
            with safe_open(self._path, framework="pt") as file:
                for name in names:
                    yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise unreadable(self._path, error) from None
