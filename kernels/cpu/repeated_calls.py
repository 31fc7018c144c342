"""Parts that make the same calls of C kernels, except for weights and caches: the layers of a model.

In each step one part makes its calls; the calls of the others are derived from them and replayed from C.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu.capture import Call, CapturedCall, CapturedCalls, CaptureMode, as_array, words_of
from kernels.cpu.library import Kernel, LoadedKernel, observed_kernels

Compute = Callable[[int], None]
"""Computes one part. A part that allocates memory is not replayed."""


class RepeatedCalls:
    """The calls of parts that differ only in addresses that are the same in all steps."""

    def __init__(self, parts: Sequence[Sequence[Call]]):
        """The calls of the other parts are derived from those of the first."""
        self._calls = CapturedCalls([call for part in parts[1:] for call in part], [])
        self._words = _words(self._calls.array).reshape(len(parts) - 1, len(parts[0]), -1)
        self._is_common = (self._words == _words(as_array(parts[0]))).all(axis=0)

    def replay(self, calls: Sequence[Call]) -> None:
        """Makes the other parts' calls, given this step's calls of the first part. Raises `MemoryError`."""
        np.copyto(self._words, _words(as_array(calls)), where=self._is_common)
        self._calls.replay()


class Repeats:
    """Computes parts one after another, most of them by replay."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, ...], RepeatedCalls | None] = {}
        """By the names of the kernels that a part calls; `None` if such parts cannot be replayed."""

    def compute(self, compute: Compute, parts: Sequence[int]) -> None:
        """Computes all parts. Raises the errors of `compute`, and `MemoryError`."""
        with _noted_calls() as first:
            compute(parts[0])
        names = tuple(kernel.name for kernel, _ in first)
        if names not in self.known:
            self.known[names] = _compute_and_compare(compute, parts[1:], first)
        elif repeated := self.known[names]:
            repeated.replay(first)
        else:
            for part in parts[1:]:
                compute(part)


def _compute_and_compare(compute: Compute, parts: Sequence[int], first: list[Call]) -> RepeatedCalls | None:
    """Computes the parts; returns their calls, or `None` if they do more than call the first part's kernels."""
    mode, ends = CaptureMode(), [0]
    with observed_kernels(mode.observe), mode:
        for part in parts:
            compute(part)
            ends.append(len(mode.calls))
    if mode.other is not None or mode.allocated:
        return None
    others = [mode.calls[begin:end] for begin, end in pairwise(ends)]
    return RepeatedCalls([first, *others]) if first and all(_is_like(first, other) for other in others) else None


@contextmanager
def _noted_calls() -> Iterator[list[Call]]:
    calls: list[Call] = []

    def observe(kernel: LoadedKernel) -> Kernel:
        def call(*arguments: Any) -> None:
            calls.append((kernel, words_of(arguments)))
            kernel.call(*arguments)

        return call

    with observed_kernels(observe):
        yield calls


def _is_like(part: Sequence[Call], other: Sequence[Call]) -> bool:
    """True if two parts call the same kernels with arguments that differ only in addresses."""
    return len(part) == len(other) and all(
        mine.captured_address is not None
        and mine.captured_address == its.captured_address
        and all(a == b or kind == "P" for kind, a, b in zip(mine.kinds, arguments, others, strict=True))
        for (mine, arguments), (its, others) in zip(part, other, strict=True)
    )


def _words(array: ctypes.Array[CapturedCall]) -> npt.NDArray[np.uint64]:
    """Returns a view of the calls as numbers, [calls, words of a call]."""
    return np.frombuffer(memoryview(array), np.uint64).reshape(len(array), -1)
