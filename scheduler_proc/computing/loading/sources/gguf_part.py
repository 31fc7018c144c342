"""Tensors in a GGUF file, under the names of a Hugging Face checkpoint.

Shape legend: O rows, B bytes of a row.
"""

import mmap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from kernels.arguments.block_forms import GGUF_FORMS
from kernels.arguments.block_rows import BlockRows
from kernels.cpu.huge_memory import advise
from messages.errors import BootError
from runtime.gguf.conversion import HfTensor
from scheduler_proc.computing.loading.sources.tensor_file import NUMBERS, StoredTensor, unreadable, with_whole_heads

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The plain number formats, by ggml's names."""

POPULATE_READ = 22
"""MADV_POPULATE_READ, of Linux 5.14."""

MAX_MAPPED_BYTES = 64 << 20
"""Pages of the file that have been read count as the process's memory until they are released, this many at a time.
Who reads a larger tensor releases its parts."""


class GgufPart:
    """See `TensorFile`. The tensors of one file among `tensors`, those of a model by name."""

    def __init__(self, path: Path, tensors: Mapping[str, HfTensor]):
        self._path = path
        self._tensors = {name: stored for name, stored in tensors.items() if stored.tensor.path == path}

    def forms(self) -> dict[str, str]:
        return {name: self._form(stored) for name, stored in self._tensors.items()}

    def _form(self, stored: HfTensor) -> str:
        form = stored.tensor.type.name
        if form not in DTYPES and form not in GGUF_FORMS:
            supported = ", ".join([*DTYPES, *GGUF_FORMS])
            raise BootError(
                f"{self._path}: tensor {stored.tensor.name} is of type {form}, which is not supported; supported are "
                f"{supported}"
            )
        return NUMBERS if form in DTYPES else form

    def read(self, names: list[str]) -> Iterator[tuple[str, StoredTensor]]:
        try:
            file_B = torch.from_file(str(self._path), size=self._path.stat().st_size, dtype=torch.uint8)
        except (RuntimeError, OSError) as error:
            raise unreadable(self._path, error) from None
        release = partial(_release, file_B)
        read: list[Tensor] = []
        num_bytes = 0
        for name in names:
            stored = self._tensors[name]
            begin = stored.tensor.offset
            bytes_B = file_B[begin : begin + stored.tensor.num_bytes]
            _advise(bytes_B[:MAX_MAPPED_BYTES], POPULATE_READ)
            yield name, _as_tensor(bytes_B, stored, release)
            read.append(bytes_B)
            num_bytes += stored.tensor.num_bytes
            if num_bytes > MAX_MAPPED_BYTES:
                for each in read:
                    _advise(each, mmap.MADV_DONTNEED)
                read.clear()
                num_bytes = 0


def _release(file_B: Tensor, blocks: Tensor) -> None:
    """Frees the memory of contiguous blocks that are in the file; others, such as reordered rows, stay."""
    begin = blocks.data_ptr() - file_B.data_ptr()
    if 0 <= begin < len(file_B) and blocks.is_contiguous():
        _advise(file_B[begin : begin + blocks.nbytes], mmap.MADV_DONTNEED)


def _advise(bytes_B: Tensor, advice: int) -> None:
    begin = bytes_B.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    advise(begin, bytes_B.data_ptr() + len(bytes_B) - begin, advice)


def _as_tensor(bytes_B: Tensor, stored: HfTensor, release: Callable[[Tensor], None]) -> StoredTensor:
    form, shape = stored.tensor.type.name, stored.tensor.shape
    if form in GGUF_FORMS:
        rows_OB = with_whole_heads(bytes_B.view(prod(shape[:-1]), -1), stored.interleaved_heads)
        rows = BlockRows(rows_OB, form, shape[-1], release)
        return rows.T if stored.is_transposed else rows
    dtype = DTYPES[form]
    aligned_B = bytes_B if bytes_B.data_ptr() % dtype.itemsize == 0 else bytes_B.clone()
    values = with_whole_heads(aligned_B.view(dtype).view(shape), stored.interleaved_heads)
    if stored.is_one_more:
        values = values - 1
    if stored.is_negative_exp:
        values = (-values).log()
    return values.T if stored.is_transposed else values
