"""Parts whose calls are derived from one part's compute what they compute themselves."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.cpu.capture import timed_kernels
from kernels.cpu.library import find_kernel
from kernels.cpu.repeated_calls import Repeats
from kernels.operations.layer_norm import layer_norm
from kernels.operations.rms_norm import rms_norm

NUM_PARTS, SIZE, MAX_TOKENS = 6, 48, 9
ALIKE = ["a"] * NUM_PARTS


@pytest.fixture(autouse=True)
def with_kernels(backend: str) -> None:
    if find_kernel("rms_norm", torch.float32) is None:
        pytest.skip(f"{backend} has no calls to repeat")


class Parts:
    """Each part norms what the one before has left, and adds it to a residual stream."""

    def __init__(self) -> None:
        self.weights, self.biases = torch.randn(2, NUM_PARTS, 2, SIZE)
        self.residual, self.normed, self.update = torch.zeros(3, MAX_TOKENS, SIZE)
        self.eps = [1e-5] * NUM_PARTS
        self.is_layer_norm = False
        self.layer_norm_parts: set[int] = set()
        self.also: Callable[[Tensor], object] = lambda normed: None

    def start(self, num_tokens: int, seed: int) -> Callable[[int], None]:
        generator = torch.Generator().manual_seed(seed)
        residual, normed, update = (part[:num_tokens] for part in (self.residual, self.normed, self.update))
        residual.copy_(torch.randn(num_tokens, SIZE, generator=generator))
        update.zero_()

        def compute(part: int) -> None:
            weight, eps = self.weights[part], self.eps[part]
            rms_norm(residual, weight[0], eps, update, normed)
            self.also(normed)
            if self.is_layer_norm or part in self.layer_norm_parts:
                layer_norm(normed, weight[1], self.biases[part][1], eps, None, update)
            else:
                rms_norm(normed, weight[1], eps, None, update)

        return compute

    def run(self, repeats: Repeats | None, num_tokens: int, seed: int) -> Tensor:
        compute = self.start(num_tokens, seed)
        if repeats is not None:
            repeats.compute(compute, range(NUM_PARTS))
        else:
            for part in range(NUM_PARTS):
                compute(part)
        return torch.stack((self.residual, self.update))[:, :num_tokens].clone()

    def check(self, repeats: Repeats) -> None:
        for seed, num_tokens in enumerate((3, MAX_TOKENS, 1, 5, 3)):
            assert torch.equal(self.run(repeats, num_tokens, seed), self.run(None, num_tokens, seed))


def test_parts_are_replayed_for_any_number_of_tokens() -> None:
    parts, repeats = Parts(), Repeats(ALIKE)
    parts.check(repeats)
    assert [names for *_, names in repeats.known] == [("rms_norm", "rms_norm")]
    assert all(repeats.known.values())


def test_parts_that_call_something_else_are_distinguished() -> None:
    parts, repeats = Parts(), Repeats(ALIKE)
    for parts.is_layer_norm in (False, True, False, True):
        parts.check(repeats)
    assert [names for *_, names in repeats.known] == [("rms_norm", "rms_norm"), ("rms_norm", "layer_norm")]
    assert all(repeats.known.values())


def parts_computed_in_python(parts: Parts, repeats: Repeats, end: int) -> list[int]:
    """Computes the parts before `end`; returns those whose calls Python made."""
    compute, computed = parts.start(3, 0), list[int]()
    repeats.compute(lambda part: (computed.append(part), compute(part))[1], range(end))
    return computed


def test_a_replay_makes_no_call_in_python() -> None:
    parts, repeats = Parts(), Repeats(ALIKE)
    parts.run(repeats, 3, 0)
    assert parts_computed_in_python(parts, repeats, NUM_PARTS) == [0]


def test_other_parts_after_the_same_first_one_are_learned_separately() -> None:
    parts, repeats = Parts(), Repeats(ALIKE)
    for end in (NUM_PARTS, NUM_PARTS - 1, NUM_PARTS):
        assert parts_computed_in_python(parts, repeats, end) in (list(range(end)), [0])
    assert len(repeats.known) == 2


def test_who_times_kernels_learns_of_all_calls() -> None:
    parts, repeats = Parts(), Repeats(ALIKE)
    for _ in range(2):
        names: list[str] = []
        with timed_kernels(lambda name, began_ns, ended_ns, names=names: names.append(name)):
            parts.run(repeats, 3, 0)
        assert names == ["rms_norm"] * 2 * NUM_PARTS


@pytest.mark.parametrize("also", [torch.empty_like, lambda normed: normed.mul_(2)], ids=["new memory", "torch"])
def test_parts_that_do_more_are_computed_one_by_one(also: Callable[[Tensor], object]) -> None:
    parts, repeats = Parts(), Repeats(ALIKE)
    parts.also = also
    parts.check(repeats)
    assert list(repeats.known.values()) == [None]


def test_parts_of_different_constants_are_repeated_with_their_own() -> None:
    parts, repeats = Parts(), Repeats(ALIKE)
    parts.eps[2] = 0.5
    parts.check(repeats)
    assert all(repeats.known.values())


@pytest.mark.parametrize("kinds", ["ababab", "aababb", "aaabbb", "abbbba", "abcabc"])
def test_parts_of_several_kinds_are_derived_from_the_first_of_their_kind(kinds: str) -> None:
    parts, repeats = Parts(), Repeats(kinds)
    parts.layer_norm_parts = {part for part, kind in enumerate(kinds) if kind == "b"}
    parts.eps = [{"a": 1e-5, "b": 1e-5, "c": 0.5}[kind] for kind in kinds]
    parts.check(repeats)
    compute, computed = parts.start(3, 0), []
    repeats.compute(lambda part: (computed.append(part), compute(part))[1], range(NUM_PARTS))
    assert computed == sorted(kinds.index(kind) for kind in set(kinds))


def test_a_kind_that_cannot_be_replayed_is_computed_among_others_that_are() -> None:
    parts, repeats = Parts(), Repeats("ababab")
    parts.layer_norm_parts = {1, 5}
    parts.check(repeats)
    compute, computed = parts.start(3, 0), []
    repeats.compute(lambda part: (computed.append(part), compute(part))[1], range(NUM_PARTS))
    assert computed == [0, 1, 3, 5]


def test_a_kind_that_calls_other_kernels_than_before_is_computed() -> None:
    parts, repeats = Parts(), Repeats("ababab")
    parts.check(repeats)
    parts.layer_norm_parts = {1, 3, 5}
    parts.check(repeats)
