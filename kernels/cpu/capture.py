"""C kernels' calls, captured while a computation makes them and replayed from C in one parallel region.

What the computation does beside calling kernels, its shapes, assertions and allocations, is done once; what it computes
depends on the contents of the memory that its calls name.
"""

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.cpu.attention_arguments import AttentionArguments
from kernels.cpu.library import INTEGER, KINDS, Kernel, LoadedKernel, find_replays, observed_kernels

MAX_ARGUMENTS = len(AttentionArguments._fields_)
"""As in source/captured_call.h."""

NEW_MEMORY = {"empty", "empty_like", "new_empty", "empty_strided"}
VIEWS = {"alias", "as_strided", "detach", "select", "slice", "split", "squeeze", "t", "transpose", "unsqueeze", "view"}


Result = TypeVar("Result")

Call = tuple[LoadedKernel, Sequence[Any]]
"""A kernel and the words of a call of it: its arguments, or the fields of its one structure."""

Note = Callable[[str, int, int], None]
"""Takes the name of a kernel, and when a call of it began and ended: `time.monotonic_ns()`."""

_notes: list[Note] = []
"""Who wants to know what replayed calls take, the latest last."""


class Argument(ctypes.Union):
    _fields_ = list(KINDS.items())


class CapturedCall(ctypes.Structure):
    _fields_ = [("run", ctypes.c_void_p), ("arguments", Argument * MAX_ARGUMENTS)]


class CapturedCalls:
    """Calls that can be made again, on the same memory. What the computation allocated lives as long as this."""

    def __init__(self, calls: Sequence[Call], allocated: list[Tensor]):
        self._names = [kernel.name for kernel, _ in calls]
        self.array = as_array(calls)
        """What is called; arguments may be changed between replays."""
        self._allocated = allocated
        self._replays = find_replays()
        self._has_begun = False

    def begin(self) -> bool:
        """Has other threads begin to make the calls while this one does something else, up to `replay`.

        Returns False where there are none, or each call is timed; `replay` then makes all.
        """
        self._has_begun = not _notes and bool(self._replays.begin(self.array, len(self.array)))
        return self._has_begun

    def replay(self) -> None:
        """Makes the calls in their order, but for those that were made since `begin`. Raises `MemoryError`."""
        if self._has_begun:
            self._has_begun = False
            self._check(self._replays.end())
            return
        ended_ns = (INTEGER * len(self.array))() if _notes else None
        began_ns = time.monotonic_ns()
        failed = self._replays.run(self.array, len(self.array), ended_ns)
        if ended_ns is not None:
            self._note(began_ns, ended_ns)
        self._check(failed)

    def _check(self, failed: int) -> None:
        if failed >= 0:
            raise MemoryError(f"{self._names[failed]}: no memory for partial results")

    def _note(self, began_ns: int, ended_ns: Iterable[int]) -> None:
        for name, end_ns in zip(self._names, ended_ns, strict=True):
            if end_ns:  # behind a call that fails, none is made
                _notes[-1](name, began_ns, end_ns)
                began_ns = end_ns


class CaptureMode(TorchDispatchMode):
    """Sees what a computation calls."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it, torch imports its compiler at the first call: a second, and nothing is compiled here

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.allocated: list[Tensor] = []
        self.other: str | None = None
        """The first thing that computes and cannot be captured."""

    def observe(self, kernel: LoadedKernel) -> Kernel:
        def call(*arguments: Any) -> None:
            if kernel.captured_address is None:
                self.other = self.other or kernel.name
            else:
                self.calls.append((kernel, words_of(arguments)))
            kernel.call(*arguments)

        return call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in NEW_MEMORY:
            self.allocated.append(result)
        elif name not in VIEWS:
            self.other = self.other or f"torch's {name}"
        return result


def capture_calls(compute: Callable[[], Result]) -> tuple[Result, CapturedCalls | None, str | None]:
    """Computes once; returns the result, and calls that leave the next one in the same tensors.

    Where something else computes beside C kernels, there are no such calls, but the name of that.
    """
    mode = CaptureMode()
    with observed_kernels(mode.observe), mode:
        result = compute()
    if mode.other is not None:
        return result, None, mode.other
    return result, CapturedCalls(mode.calls, mode.allocated), None


@contextmanager
def timed_kernels(note: Note) -> Iterator[None]:
    """Each call of a C kernel is noted, inside of the block, be it a launcher's or replayed."""

    def observe(kernel: LoadedKernel) -> Kernel:
        def call(*arguments: Any) -> None:
            began_ns = time.monotonic_ns()
            kernel.call(*arguments)
            note(kernel.name, began_ns, time.monotonic_ns())

        return call

    _notes.append(note)
    try:
        with observed_kernels(observe):
            yield
    finally:
        _notes.remove(note)


def words_of(arguments: Sequence[Any]) -> Sequence[Any]:
    """Returns the words of a call with these arguments."""
    return arguments[0].words if isinstance(arguments[0], AttentionArguments) else arguments


def as_array(calls: Sequence[Call]) -> ctypes.Array[CapturedCall]:
    """Returns the calls as `sluice_replay` reads them. Each is of a kernel that can be captured."""
    return (CapturedCall * len(calls))(*(_as_call(*call) for call in calls))


def _as_call(kernel: LoadedKernel, arguments: Sequence[Any]) -> CapturedCall:
    call = CapturedCall(kernel.captured_address)
    for place, kind, value in zip(call.arguments, kernel.kinds, arguments, strict=False):
        setattr(place, kind, value)
    return call
