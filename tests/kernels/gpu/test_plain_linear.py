"""Products with fixed launches: a token's outputs are the same bits alone, in any batch and at any place in it."""

from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from kernels.gpu.launch_table import find_launch
from kernels.gpu.plain_linear import find_part_blocks
from kernels.operations.plain_linear import plain_linear
from tests.kernels.gpu.triton_in_use import triton_in_use

TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Relative to the sum of the magnitudes of a product. The result is rounded once."""

SHAPES = [(70, 1000), (300, 130), (1, 8), (130, 1100)]
"""Outputs and inputs, with one part and with several."""


@pytest.fixture(autouse=True)
def backend(backend: Counter[str]) -> Iterator[Counter[str]]:
    with triton_in_use(is_fixed=True) as taken:
        yield taken


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
def test_a_token_has_the_same_bits_alone_and_in_any_batch(
    num_outputs: int, num_inputs: int, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program itself may add up the parts."""
    generator = torch.Generator().manual_seed(num_outputs)
    x_TI = torch.randn(70, num_inputs, generator=generator).to(dtype)
    weight_OI = torch.randn(num_outputs, num_inputs, generator=generator).to(dtype)
    bias_O = torch.randn(num_outputs, generator=generator).to(dtype)
    there = [tensor.to(device) for tensor in (x_TI, weight_OI, bias_O)]
    expected = plain_linear(*there).cpu()
    values, size = x_TI.double() @ weight_OI.double().T, x_TI.double().abs() @ weight_OI.double().abs().T
    error = (expected.double() - values - bias_O.double()).abs()
    assert bool((error <= TOLERANCES[dtype] * (size + bias_O.double().abs())).all())
    for first, end in ((0, 1), (69, 70), (3, 40)):
        assert torch.equal(plain_linear(there[0][first:end], *there[1:]).cpu(), expected[first:end])
    monkeypatch.setattr("kernels.gpu.plain_linear.PART_BLOCKS", 1)
    cut = plain_linear(*there)
    monkeypatch.setattr("kernels.gpu.plain_linear.is_cut", lambda *_: False)
    assert torch.equal(plain_linear(*there), cut)


def test_no_tokens(device: str) -> None:
    assert plain_linear(torch.ones(0, 8, device=device), torch.ones(4, 8, device=device), None).shape == (0, 4)


def test_parts_follow_from_the_weight() -> None:
    """Few outputs are cut into parts, many are not; a part is never shorter than four blocks."""
    assert find_launch("plain_linear", 2)["BLOCK_I"] == 64
    assert [find_part_blocks(32, 8), find_part_blocks(32, 1187), find_part_blocks(3, 8)] == [4, 32, 3]
    assert find_part_blocks(224, 32) == 28
