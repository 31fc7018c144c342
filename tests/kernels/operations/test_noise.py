import math

import pytest
import torch

from kernels.operations.noise import exponential_noise
from tests.kernels.cases import DEVICES

scipy = pytest.importorskip("scipy")  # whose parts, which take long, are imported when first named

MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1


def mix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def lowbias32(x: int) -> int:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK32
    return x ^ (x >> 16)


def expect(seed: int, position: int, token: int) -> float:
    key = mix64((mix64(seed & MASK64) + position) & MASK64)
    hashed = lowbias32(lowbias32(token ^ (key & MASK32)) ^ (key >> 32))
    return -math.log1p(-min(((hashed & 0x7FFFFFFF) + 0.5) * 2.0**-31, 1 - 2.0**-24))


def draw(seeds: list[int], positions: list[int], vocab_size: int, device: str = "cpu") -> torch.Tensor:
    return exponential_noise(torch.tensor(seeds, device=device), torch.tensor(positions, device=device), vocab_size)


def test_mix64_is_splitmix64() -> None:
    """First outputs of SplitMix64 from seed 0, as published with the generator."""
    assert [mix64(0), mix64(0x9E3779B97F4A7C15)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


@pytest.mark.parametrize("device", DEVICES)
def test_equals_the_hash_in_plain_integers(device: str) -> None:
    seeds = [0, 1, -1, (1 << 63) - 1, -(1 << 63), 123456789]
    positions = [0, 1, 4095, 7, 131071, 2]
    noise = draw(seeds, positions, 1000, device).cpu()
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        for token in (0, 1, 2, 500, 999):
            assert float(noise[row, token]) == pytest.approx(expect(seed, position, token), rel=2e-6)


def test_a_row_is_the_same_alone_in_a_batch_and_in_a_larger_vocabulary() -> None:
    together = draw([5, 5, 6], [1, 2, 1], 777)
    for row, (seed, position) in enumerate([(5, 1), (5, 2), (6, 1)]):
        assert torch.equal(together[row], draw([seed], [position], 777)[0])
    assert torch.equal(together, draw([5, 5, 6], [1, 2, 1], 900)[:, :777])


def test_follows_the_exponential_distribution() -> None:
    for row in draw([0, 1, 42], [0, 1000, 3], 50_000):
        assert bool((row > 0).all())
        assert bool(row.isfinite().all())
        assert scipy.stats.kstest(row.numpy(), "expon").pvalue > 0.01


@pytest.mark.parametrize("axis", ["seeds", "positions", "tokens"])
def test_neighbours_are_independent(axis: str) -> None:
    """Each of 8 x 8 cells gets its share of pairs that are neighbours along one axis."""
    counter = list(range(400))
    if axis == "seeds":
        noise = draw(counter, [9] * 400, 500)
    elif axis == "positions":
        noise = draw([9] * 400, counter, 500)
    else:
        noise = draw(counter, counter, 500).T
    eighths = (1 - (-noise).exp()).mul(8).long().clamp(max=7)
    cells = torch.bincount((eighths[:-1] * 8 + eighths[1:]).flatten(), minlength=64)
    assert scipy.stats.chisquare(cells.numpy()).pvalue > 0.01
