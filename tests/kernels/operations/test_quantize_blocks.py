"""Weights that are quantized to 4 bits: a bfloat16 scale for 32 inputs, any number of inputs."""

from typing import Literal

import pytest
import torch
from torch.nn import functional

from kernels.operations.block_linear import (
    block_linear,
    block_linear_reference,
    quantize_blocks,
    quantize_reference,
    unpack,
)
from tests.kernels.operations.test_quantized_linear import DTYPES, SIZES, distance, make_case, no_clean_memory

__all__ = ["no_clean_memory"]


@pytest.mark.usefixtures("no_clean_memory")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_tokens", "num_inputs", "num_outputs"),
    [(1, 64, 32), (1, 1100, 70), (2, 100, 33), (3, 100, 70), (4, 33, 1), (5, 600, 33), (13, 100, 70), (70, 1100, 33)],
)
def test_it_is_the_product(dtype: torch.dtype, num_tokens: int, num_inputs: int, num_outputs: int) -> None:
    x, weight, bias = make_case(num_tokens, num_inputs, num_outputs, dtype)
    quantized = quantize_blocks(weight)
    activations: list[Literal["tanh"] | None] = [None, "tanh"]
    for added, activation in zip((bias, None), activations, strict=True):
        expected = block_linear_reference(x, quantized, added, activation)
        got = block_linear(x, quantized, added, activation)
        assert got.dtype == dtype
        assert got.shape == expected.shape
        assert distance(got, expected) < {4: 1e-3, 2: 5e-3}[dtype.itemsize]


def test_it_is_near_the_product_of_the_real_weight() -> None:
    x, weight, bias = make_case(20, 512, 70, torch.float32)
    assert distance(block_linear(x, quantize_blocks(weight), bias), x @ weight.T + bias) < 0.1


@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(64, 33), (1100, 64)])
@pytest.mark.parametrize("is_behind_gelu", [False, True])
def test_a_row_is_the_same_bits_in_any_batch(
    backend: str, num_inputs: int, num_outputs: int, is_behind_gelu: bool
) -> None:
    if backend == "torch":
        pytest.skip("torch chooses another order for another number of rows")
    x, weight, bias = make_case(270, num_inputs, num_outputs, torch.bfloat16)
    x = functional.gelu(x) if is_behind_gelu else x
    quantized = quantize_blocks(weight)
    together = block_linear(x, quantized, bias)
    each_size_of_tile = ((20, 20 + num_rows) for num_rows in range(1, 16))
    for begin, end in (*each_size_of_tile, (16, 33), (33, 70), (255, 270)):
        assert torch.equal(block_linear(x[begin:end], quantized, bias), together[begin:end])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("num_tokens", [9, 40])
def test_what_is_not_finite_stays_in_its_row(bad: float, num_tokens: int) -> None:
    x, weight, _ = make_case(num_tokens, 100, 40, torch.bfloat16)
    x[3, 77] = bad
    out = block_linear(x, quantize_blocks(weight), None)
    assert out.isnan().any(dim=1).nonzero().flatten().tolist() == [3]


def test_zeros_and_tiny_numbers() -> None:
    x, weight, bias = make_case(3, 100, 40, torch.float32)
    x[0], x[1] = 0, 1e-38
    weight[:7] = 0
    out = block_linear(x, quantize_blocks(weight), bias)
    torch.testing.assert_close(out[:2], bias.expand(2, -1))
    assert torch.equal(out[2, :7], bias[:7])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_is_near_itself(dtype: torch.dtype) -> None:
    _, weight, _ = make_case(1, 100, 70, dtype)
    near = unpack(quantize_blocks(weight))
    assert near.shape == weight.shape
    # A step is the largest of a group over 8; half of it, or all where the largest has no counterpart.
    assert float((near - weight.float()).abs().max()) <= float(weight.float().abs().max()) / 7.5


def test_codes_come_back() -> None:
    """Every code at every place of a group, with a scale of 1 that -8 fixes."""
    weight = torch.randint(-8, 8, (70, 128), generator=torch.Generator().manual_seed(0)).float()
    weight[:, ::32] = -8
    assert torch.equal(unpack(quantize_blocks(weight)), weight)


def test_a_weight_takes_four_and_a_half_bits() -> None:
    weight = torch.randn(64, 1024)
    assert quantize_blocks(weight).stored.nbytes / weight.numel() * 8 == 4.5


@pytest.mark.usefixtures("no_clean_memory")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_inputs", "num_outputs"), SIZES)
def test_every_backend_makes_the_same_codes(dtype: torch.dtype, num_inputs: int, num_outputs: int) -> None:
    _, weight, _ = make_case(1, num_inputs, num_outputs, dtype)
    weight[0] = 0
    assert torch.equal(quantize_blocks(weight).stored, quantize_reference(weight, 4, None))
