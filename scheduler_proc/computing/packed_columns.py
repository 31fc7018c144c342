"""Columns of numbers laid out one after another in one buffer, so that one copy moves them all to a device."""

from collections.abc import Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes; kernels are compiled for columns that start at multiples of 16, and a copy of a buffer keeps them there."""

TORCH_DTYPES = {"int32": torch.int32, "int64": torch.int64, "float32": torch.float32, "bool": torch.bool}
"""By numpy's names."""

Shape = tuple[int, ...]


class PackedColumns:
    """Where each named column lies. The layout is a function of names, number formats and shapes alone."""

    def __init__(self, columns: Mapping[str, tuple[torch.dtype, Shape]]):
        self._places: dict[str, tuple[int, int, torch.dtype, Shape]] = {}
        end = 0
        for name, (dtype, shape) in columns.items():
            num_bytes = dtype.itemsize * prod(shape)
            self._places[name] = (end, end + num_bytes, dtype, shape)
            end += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        self.num_bytes = end

    @classmethod
    def like(cls, arrays: Mapping[str, np.ndarray]) -> "PackedColumns":
        """Returns the layout for columns of the names, number formats and shapes of `arrays`."""
        return cls({name: (TORCH_DTYPES[array.dtype.name], array.shape) for name, array in arrays.items()})

    def write(self, arrays: Mapping[str, np.ndarray], buffer: Tensor) -> None:
        """Writes the columns into `buffer`, which is in the host's memory."""
        for name, column in self.arrays(buffer).items():
            column[...] = arrays[name]

    def tensors(self, buffer: Tensor) -> dict[str, Tensor]:
        """Returns the columns in `buffer` (uint8, at least `num_bytes` long), of which they are views."""
        return {
            name: buffer[start:end].view(dtype).view(shape) for name, (start, end, dtype, shape) in self._places.items()
        }

    def arrays(self, buffer: Tensor) -> dict[str, np.ndarray]:
        """Returns the same for a buffer in the host's memory."""
        return {name: tensor.numpy() for name, tensor in self.tensors(buffer).items()}


def join(tensors: list[Tensor]) -> Tensor:
    """Returns the bytes of all tensors (contiguous, on one device) in one uint8 tensor, for `split` on the host."""
    parts = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def split(data: Tensor, likes: list[Tensor]) -> list[Tensor]:
    """Returns the tensors that `join` has put together; each has the number format and shape of its like."""
    parts = data.split([like.nbytes for like in likes])
    # A part begins anywhere, and a view in a wider format must begin at a multiple of it.
    return [part.clone().view(like.dtype).view(like.shape) for part, like in zip(parts, likes, strict=True)]
