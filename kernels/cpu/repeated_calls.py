"""Parts that make the same calls of C kernels on the same memory, except for weights and caches: the layers of a model.

Parts of one kind make the same calls. In each step one part of each kind makes its calls; the calls of the others are
derived from them and replayed from C.
"""

import ctypes
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from kernels.cpu.arguments import Arguments
from kernels.cpu.capture import Call, CapturedCall, CapturedCalls, CaptureMode, as_array, recorded_calls

Compute = Callable[[int], None]
"""Computes one part. Memory that it makes is not kept for a replay, so a part that makes some is not replayed."""

Names = tuple[str, ...]
"""The names of the kernels that a part calls, in order."""

Calls = Sequence[Call]


class RepeatedCalls:
    """The calls of consecutive parts. Parts of a kind differ from their leader in what never changes in any step."""

    def __init__(self, leaders: Mapping[int, Calls], parts: Sequence[tuple[int, Calls]]):
        self._calls = CapturedCalls([call for _, calls in parts for call in calls], [])
        self._words = _words(self._calls.array)
        self._kinds = list(dict.fromkeys(kind for kind, _ in parts))
        first_rows, num_rows = dict[int, int](), 0
        for kind in self._kinds:
            first_rows[kind] = num_rows
            num_rows += len(leaders[kind])
        self._rows = np.concatenate([first_rows[kind] + np.arange(len(calls)) for kind, calls in parts])
        self._is_common = self._words == self._expand(leaders)

    def replay(self, leaders: Mapping[int, Calls]) -> None:
        """Makes the calls of the parts, given the leaders' calls in this step. Raises `MemoryError`."""
        np.copyto(self._words, self._expand(leaders), where=self._is_common)
        self._calls.replay()

    def _expand(self, leaders: Mapping[int, Calls]) -> npt.NDArray[np.uint64]:
        """Returns for each call the words of the same call of its leader."""
        return np.concatenate([_words(as_array(leaders[kind])) for kind in self._kinds])[self._rows]


@dataclass(frozen=True)
class Program:
    """How to compute all parts but the first: replays, and indices of parts to compute. `names`: those of leaders."""

    steps: Sequence[RepeatedCalls | int]
    names: Mapping[int, Names]


class Repeats:
    """Computes parts one after another, most of them by replays; `kinds` has the kind of each part."""

    def __init__(self, kinds: Sequence[Hashable]):
        self.known: dict[tuple[int, int, Names], Program | None] = {}
        """By the first and the last part, and the kernels that the first one calls; None: no part can be replayed."""
        numbers: dict[Hashable, int] = {}
        self._kinds = [numbers.setdefault(kind, len(numbers)) for kind in kinds]

    def compute(self, compute: Compute, parts: Sequence[int]) -> None:
        """Computes all parts. Raises what `compute` raises, and `MemoryError`."""
        with recorded_calls() as first:
            compute(parts[0])
        key = parts[0], parts[-1], _names(first)
        if key not in self.known:
            self.known[key] = self._learn(compute, parts, first)
            return
        program, leaders = self.known[key], {self._kinds[parts[0]]: first}
        for step in parts[1:] if program is None else program.steps:
            if isinstance(step, RepeatedCalls):
                step.replay(leaders)
            elif program is None or step not in program.names:
                compute(step)
            else:
                with recorded_calls() as calls:
                    compute(step)
                if _names(calls) != program.names[step]:  # these parts cannot be derived from what was learned
                    for part in parts[parts.index(step) + 1 :]:
                        compute(part)
                    return
                leaders[self._kinds[step]] = calls

    def _learn(self, compute: Compute, parts: Sequence[int], first: Calls) -> Program | None:
        """Computes the parts after the first; returns how to do so again."""
        calls: dict[int, Calls | None] = {parts[0]: first}
        for part in parts[1:]:
            calls[part] = _observe(compute, part)
        leaders, repeated = dict[int, int](), set[int]()
        for part in parts:
            leaders.setdefault(self._kinds[part], part)
        for kind, leader in leaders.items():
            followers = [part for part in parts if self._kinds[part] == kind and part != leader]
            if followers and all(_is_like(calls[leader], calls[part]) for part in followers):
                repeated.add(kind)
        if not repeated:
            return None
        found = {kind: calls[leader] or [] for kind, leader in leaders.items()}
        steps: list[RepeatedCalls | int] = []

        def is_replayed(part: int) -> bool:
            return self._kinds[part] in repeated and part not in leaders.values()

        for can_replay, run in groupby(parts[1:], is_replayed):
            if can_replay:
                steps.append(RepeatedCalls(found, [(self._kinds[part], calls[part] or []) for part in run]))
            else:
                steps += run
        return Program(steps, {leaders[kind]: _names(found[kind]) for kind in repeated})


def _observe(compute: Compute, part: int) -> Calls | None:
    """Computes the part; returns its calls, None if it does more than call kernels."""
    mode = CaptureMode()
    with recorded_calls() as calls, mode:
        compute(part)
    return None if mode.other is not None or mode.allocated else calls


def _names(calls: Calls) -> Names:
    return tuple(kernel.name for kernel, _ in calls)


def _is_like(part: Calls | None, other: Calls | None) -> bool:
    """True if both parts call the same kernels, with different addresses and constants (floats) at most."""
    if not part or not other or len(part) != len(other):
        return False
    return all(
        mine.address == its.address and _fixed_words(arguments) == _fixed_words(others)
        for (mine, arguments), (its, others) in zip(part, other, strict=True)
    )


def _fixed_words(arguments: Arguments) -> list[int]:
    return np.frombuffer(memoryview(arguments), np.uint64)[[*arguments.fixed_words]].tolist()


def _words(array: ctypes.Array[CapturedCall]) -> npt.NDArray[np.uint64]:
    """Returns the same memory as numbers, [calls, words of a call]."""
    return np.frombuffer(memoryview(array), np.uint64).reshape(len(array), -1)
