"""Calls of C kernels, captured while a computation makes them and replayed from C in one parallel region.

The rest of the computation (shapes, assertions, allocations) runs once; the result of a replay depends on the contents
of the memory that the calls point to.
"""

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.cpu.arguments import MAX_WORDS, Arguments
from kernels.cpu.library import INTEGER, Kernel, Run, find_library, observed_kernels

NEW_MEMORY = {"empty", "empty_like", "new_empty", "empty_strided"}
VIEWS = {
    *("alias", "as_strided", "detach", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose"),
    *("unsqueeze", "view"),
}


Result = TypeVar("Result")

Call = tuple[Kernel, Arguments]
"""A kernel and its arguments in a call."""

Note = Callable[[str, int, int], None]
"""Takes the name of a kernel and the begin and end of a call of it: `time.monotonic_ns()`."""

_notes: list[Note] = []
"""The observers of replayed calls, the latest last."""


class CapturedCall(ctypes.Structure):
    """As in source/captured_call.h."""

    _fields_ = [("run", ctypes.c_void_p), ("arguments", ctypes.c_uint64 * MAX_WORDS)]


class CapturedCalls:
    """Calls that can be repeated on the same memory. The tensors that the computation allocated live as long."""

    def __init__(self, calls: Sequence[Call], allocated: list[Tensor]):
        self._names = [kernel.name for kernel, _ in calls]
        self.array = as_array(calls)
        """The calls; their arguments may be changed between replays."""
        self._allocated = allocated
        self._library = find_library()
        self._has_begun = False

    def begin(self) -> bool:
        """Makes other threads start the calls while this one does something else, until `replay`.

        Returns False if there are no other threads or calls are timed; then `replay` makes all calls.
        """
        self._has_begun = not _notes and bool(self._library.sluice_begin_replay(self.array, len(self.array)))
        return self._has_begun

    def replay(self) -> None:
        """Makes the calls that have not been made since `begin`, in order. Raises `MemoryError`."""
        if self._has_begun:
            self._has_begun = False
            self._check(self._library.sluice_end_replay())
            return
        ended_ns = (INTEGER * len(self.array))() if _notes else None
        began_ns = time.monotonic_ns()
        failed = self._library.sluice_replay(self.array, len(self.array), ended_ns)
        if ended_ns is not None:
            self._record(began_ns, ended_ns)
        self._check(failed)

    def _check(self, failed: int) -> None:
        if failed >= 0:
            raise MemoryError(f"{self._names[failed]}: no memory for partial results")

    def _record(self, began_ns: int, ended_ns: Iterable[int]) -> None:
        for name, end_ns in zip(self._names, ended_ns, strict=True):
            if end_ns:  # no call is made after one that fails
                _notes[-1](name, began_ns, end_ns)
                began_ns = end_ns


class CaptureMode(TorchDispatchMode):
    """Records what a computation does besides calls of C kernels."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True makes torch import its compiler at the first call, which takes a second

    def __init__(self) -> None:
        super().__init__()
        self.allocated: list[Tensor] = []
        self.other: str | None = None
        """The first operation that computes and cannot be captured."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in NEW_MEMORY:
            self.allocated.append(result)
        elif name not in VIEWS:
            self.other = self.other or f"torch's {name}"
        return result


def capture_calls(compute: Callable[[], Result]) -> tuple[Result, CapturedCalls | None, str | None]:
    """Computes once; returns the result, calls that write the next result to the same tensors, and `None`.

    If anything other than C kernels computes, it returns no calls but the name of that operation.
    """
    mode = CaptureMode()
    with recorded_calls() as calls, mode:
        result = compute()
    if mode.other is not None:
        return result, None, mode.other
    return result, CapturedCalls(calls, mode.allocated), None


@contextmanager
def recorded_calls() -> Iterator[list[Call]]:
    """Yields the list that each call of a C kernel inside the block is added to."""
    calls: list[Call] = []

    def observe(kernel: Kernel) -> Run:
        def run(arguments: Arguments) -> None:
            calls.append((kernel, arguments))
            kernel.run(arguments)

        return run

    with observed_kernels(observe):
        yield calls


@contextmanager
def timed_kernels(record: Note) -> Iterator[None]:
    """Reports each call of a C kernel inside the block, whether a launcher makes it or a replay."""

    def observe(kernel: Kernel) -> Run:
        def run(arguments: Arguments) -> None:
            began_ns = time.monotonic_ns()
            kernel.run(arguments)
            record(kernel.name, began_ns, time.monotonic_ns())

        return run

    _notes.append(record)
    try:
        with observed_kernels(observe):
            yield
    finally:
        _notes.remove(record)


def as_array(calls: Sequence[Call]) -> ctypes.Array[CapturedCall]:
    """Returns the calls as `sluice_replay` reads them."""
    array = (CapturedCall * len(calls))()
    for place, (kernel, arguments) in zip(array, calls, strict=True):
        place.run = kernel.address
        ctypes.memmove(place.arguments, ctypes.addressof(arguments), ctypes.sizeof(arguments))
    return array
