"""The file in memory that holds a run's weights as kernels read them: one scheduler writes it, all map it.

The launcher owns the file. It begins with a header, whose seal is written last, and the list of the parameters; their
values follow in the same order. Who writes holds its lock alone, who maps it shares the lock until its process ends:
memory that somebody reads is never given back.
"""

import fcntl
import hashlib
import logging
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from kernels.cpu.huge_pages import ALIGNMENT, HUGE_PAGE, Chunk, make_huge
from kernels.packed_linear import PackedWeight
from kernels.quantized_linear import QuantizedWeight
from messages.errors import BootError
from scheduler_proc.computing.loading.weights import Report, Weights

HEADER = struct.Struct("<32s32sQQ")
"""Seal, identity, bytes of the list, bytes of all. The seal is a digest of what is behind it and of the list."""

LOCK = struct.Struct("hhqqi4x")
"""The kernel's `struct flock`. These locks belong to an open file, and change from alone to shared in one go."""

KINDS = {"packed": PackedWeight, "quantized": QuantizedWeight}
WAIT_S = 0.05

log = logging.getLogger("sluice.weights")


class Parameter(msgspec.Struct, frozen=True, array_like=True):
    """One of the list: a tensor, or the tensor of a weight of that kind with its `numbers`."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    numbers: tuple[int, ...]


class WeightMemory:
    """The file at `path`, for a scheduler of this `identity`. Raises `BootError` where it cannot be opened."""

    def __init__(self, path: Path, identity: bytes):
        self._identity = identity
        try:
            # Closed with the process, or by `load` where nothing is mapped: as long as it is open the lock is held.
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise BootError(f"{path}: {error.strerror}; --no-share-weights does without it") from None

    def load(self, make: Callable[[], Weights], report: Report) -> Weights:
        """Returns the weights in the file, which is written first where there are none, with those that `make` returns.

        Waits while another scheduler writes, for as long as that lives. Where others use weights of another identity,
        it returns what `make` does. Raises `BootError` where the memory cannot be had.
        """
        while (weights := self.find()) is None:
            if self._lock(fcntl.F_WRLCK):
                self._write(make())
            elif self._holds_other():
                log.warning("the weights that other schedulers share are of other flags or files: not shared")
                os.close(self._descriptor)
                return make()
            else:
                report("waiting for the weights, which another scheduler loads", None)
                time.sleep(WAIT_S)
        return weights

    def find(self) -> Weights | None:
        """Returns the weights in the file; None where there are none of this identity, or somebody writes."""
        if not self._lock(fcntl.F_RDLCK):
            return None
        seal, identity, num_list_bytes, num_bytes = self._read_header()
        text = os.pread(self._descriptor, num_list_bytes, HEADER.size) if identity == self._identity else b""
        if seal != _seal(self._identity, text, num_bytes) or num_bytes != os.fstat(self._descriptor).st_size:
            self._lock(fcntl.F_UNLCK)
            return None
        chunk = self._map(num_bytes, num_list_bytes, is_read_only=True)
        parameters = msgspec.json.decode(text, type=list[Parameter])
        return {one.name: _restore(one, _take(chunk, one.shape, getattr(torch, one.dtype))) for one in parameters}

    def _lock(self, kind: int) -> bool:
        """Returns whether this open file has a lock of that kind now; what it had, it keeps otherwise."""
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, LOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
        except BlockingIOError:
            return False
        return True

    def _read_header(self) -> tuple[bytes, bytes, int, int]:
        return HEADER.unpack(os.pread(self._descriptor, HEADER.size, 0).ljust(HEADER.size, b"\0"))

    def _holds_other(self) -> bool:
        """Tells whether others use weights of another identity: they keep the lock, so nothing can be written."""
        seal, identity, _, _ = self._read_header()
        return seal != bytes(len(seal)) and identity != self._identity

    def _write(self, weights: Weights) -> None:
        """Puts them into the file one by one, so that there is never a second copy of many."""
        parameters = [_describe(name, weight) for name, weight in weights.items()]
        text = msgspec.json.encode(parameters)
        sizes = [_tensor_of(weight).nbytes for weight in weights.values()]
        num_bytes = HEADER.size + len(text) + sum(size + ALIGNMENT for size in sizes) + HUGE_PAGE
        try:
            os.ftruncate(self._descriptor, 0)  # what was there is of another identity, or was never finished
            os.ftruncate(self._descriptor, num_bytes)
            chunk = self._map(num_bytes, len(text))
        except OSError as error:
            raise BootError(f"the weights in memory: {error.strerror}; --no-share-weights does without it") from None
        for parameter in parameters:
            tensor = _tensor_of(weights.pop(parameter.name))
            room = _take(chunk, parameter.shape, tensor.dtype)
            make_huge(room.data_ptr(), room.nbytes)
            room.copy_(tensor)
        os.pwrite(self._descriptor, text, HEADER.size)
        seal = _seal(self._identity, text, num_bytes)
        os.pwrite(self._descriptor, HEADER.pack(seal, self._identity, len(text), num_bytes), 0)
        log.info("weights are kept in memory for all schedulers: %.2f GiB", sum(sizes) / 2**30)

    def _map(self, num_bytes: int, num_list_bytes: int, is_read_only: bool = False) -> Chunk:
        """Returns the file, of which values can be taken."""
        chunk = Chunk(num_bytes, self._descriptor, is_read_only)
        _take(chunk, (HEADER.size + num_list_bytes,), torch.uint8)
        return chunk


def _seal(identity: bytes, text: bytes, num_bytes: int) -> bytes:
    return hashlib.sha256(identity + num_bytes.to_bytes(8, "little") + text).digest()


def _take(chunk: Chunk, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    tensor = chunk.take(shape, dtype)
    assert tensor is not None, "the file is too small for its list"
    return tensor


def _tensor_of(weight: Tensor | PackedWeight | QuantizedWeight) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight.packed


def _describe(name: str, weight: Tensor | PackedWeight | QuantizedWeight) -> Parameter:
    tensor, kind, numbers = _tensor_of(weight), "tensor", ()
    if isinstance(weight, PackedWeight):
        kind, numbers = "packed", (weight.num_outputs,)
    elif isinstance(weight, QuantizedWeight):
        kind, numbers = "quantized", (weight.num_outputs, weight.num_inputs, weight.bits)
    return Parameter(name, kind, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), numbers)


def _restore(parameter: Parameter, tensor: Tensor) -> Tensor | PackedWeight | QuantizedWeight:
    return KINDS[parameter.kind](tensor, *parameter.numbers) if parameter.numbers else tensor
