"""The tiles in software compute the bits that the processor's manual describes."""

from pathlib import Path

import pytest
import torch

from kernels.cpu.library import use_library
from kernels.operations.packed_linear import pack, packed_linear

TILE_INPUTS = 32
"""The inputs that one instruction adds."""


@pytest.fixture(autouse=True)
def tiles(with_software_tiles: tuple[str, Path]) -> None:
    isa, library = with_software_tiles
    if isa != "avx512":
        pytest.skip("this processor does not multiply pairs of bfloat16")
    assert use_library(library, isa) == isa


def sum_products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Sums of even and of odd inputs, each added in ascending order and rounded once an input, and then both together.

    In float64, which holds the numbers of these tests before they are rounded.
    """
    sums = torch.zeros(weight.shape[0])
    for first in range(0, x.shape[0], TILE_INPUTS):
        parts = torch.zeros(2, weight.shape[0])
        for i in range(first, first + TILE_INPUTS):
            parts[i % 2] = (parts[i % 2].double() + x[i].double() * weight[:, i].double()).float()
        sums += parts[0] + parts[1]
    return sums


def test_sums_have_the_bits_of_the_manual() -> None:
    """A bias that leaves only what the output would have rounded away shows the last bits."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(96, generator=generator).bfloat16(), torch.randn(640, 96, generator=generator).bfloat16()
    sums = sum_products(x, weight)
    bias = -sums.bfloat16()
    got = packed_linear(x[None], pack(weight), bias, weight.shape[0])
    assert torch.equal(got[0], (sums + bias.float()).bfloat16())


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ({0: (2.0**30, 1), 1: (1, 1), 2: (-(2.0**30), 1)}, 1.0),  # in one chain, 1 would be lost
        ({0: (2.0**-130, 2.0**40)}, 0.0),  # a denormal number
        ({0: (2.0**-70, 2.0**-60)}, 0.0),  # a product that would be one
    ],
)
def test_sums_of_single_inputs(pairs: dict[int, tuple[float, float]], expected: float) -> None:
    x, weight = torch.zeros(1, TILE_INPUTS), torch.zeros(1, TILE_INPUTS)
    for i, (value, factor) in pairs.items():
        x[0, i], weight[0, i] = value, factor
    assert float(packed_linear(x.bfloat16(), pack(weight.bfloat16()), None, 1)) == expected
