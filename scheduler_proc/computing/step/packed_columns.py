"""Columns of numbers laid out one after another in one buffer, so that one copy moves them all to a device."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes; kernels are compiled for columns that start at multiples of 16, and a copy of a buffer keeps them there."""

TORCH_DTYPES = {"int32": torch.int32, "int64": torch.int64, "float32": torch.float32, "bool": torch.bool}
"""By numpy's names."""

NUMPY_DTYPES = {dtype: np.dtype(name) for name, dtype in TORCH_DTYPES.items()}

Shape = tuple[int, ...]


class PackedColumns:
    """Where each named column lies. The layout is a function of names, number formats and shapes alone."""

    def __init__(self, columns: Mapping[str, tuple[torch.dtype, Shape]]):
        self._places: dict[str, tuple[torch.dtype, int, int, Shape]] = {}
        """Number format, and first and last place of the column where the buffer is one array of that format."""
        end = 0
        for name, (dtype, shape) in columns.items():
            itemsize, count = dtype.itemsize, prod(shape)
            self._places[name] = (dtype, end // itemsize, end // itemsize + count, shape)
            end += -(-itemsize * count // ALIGNMENT) * ALIGNMENT
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
        wholes = {dtype: buffer[: self.num_bytes].view(dtype) for dtype in self._dtypes}
        return {
            name: wholes[dtype][start:end] if len(shape) == 1 else wholes[dtype][start:end].view(shape)
            for name, (dtype, start, end, shape) in self._places.items()
        }

    def arrays(self, buffer: Tensor) -> dict[str, np.ndarray]:
        """Returns the same for a buffer in the host's memory."""
        whole = buffer.numpy()[: self.num_bytes]
        wholes = {dtype: whole.view(NUMPY_DTYPES[dtype]) for dtype in self._dtypes}
        return {
            name: wholes[dtype][start:end].reshape(shape) for name, (dtype, start, end, shape) in self._places.items()
        }

    @property
    def _dtypes(self) -> set[torch.dtype]:
        return {dtype for dtype, *_ in self._places.values()}


def join(tensors: Sequence[Tensor]) -> Tensor:
    """Returns the bytes of all tensors (contiguous, on one device) in one uint8 tensor, for `split` on the host."""
    parts = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def split(data: Tensor, likes: Sequence[Tensor]) -> list[Tensor]:
    """Returns the tensors that `join` has put together; each has the number format and shape of its like."""
    parts = data.split([like.nbytes for like in likes])
    # A part begins anywhere, and a view in a wider format must begin at a multiple of it.
    return [part.clone().view(like.dtype).view(like.shape) for part, like in zip(parts, likes, strict=True)]
