"""Shape legend: T tokens, C channels, K taps, J = K - 1."""

import itertools

import pytest
import torch
from torch import Tensor
from transformers.models.lfm2.modeling_lfm2 import causal_conv1d_fn

from kernels.arguments.state_rows import StateRows
from kernels.operations.short_conv import short_conv
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case
from tests.kernels.state_cases import CHAIN, NUM_TOKENS, chained_rows, expect_rows, make_states, mixed_rows, one_row
from tests.naming import naming

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = [(1, 4), (17, 4), (160, 4), (83, 3), (64, 7), (40, 2), (70, 9)]
"""Channels and taps."""


def make_inputs(
    num_channels: int, num_taps: int, dtype: torch.dtype, device: str, is_gated: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns an input whose rows lie apart, the weight and the bias."""
    width = (3 if is_gated else 1) * num_channels
    parts = torch.randn(NUM_TOKENS, width + 5)[:, 3:-2], torch.randn(num_channels, num_taps), torch.randn(num_channels)
    input_TX, weight_CK, bias_C = (part.to(device, dtype) for part in parts)
    whole = torch.zeros(NUM_TOKENS, width + 5, dtype=dtype, device=device)
    whole[:, 3:-2] = input_TX
    return whole[:, 3:-2], weight_CK, bias_C


def expect(
    inputs: tuple[Tensor, Tensor, Tensor | None], tails: Tensor, rows: StateRows, is_gated: bool
) -> tuple[Tensor, Tensor]:
    """What transformers computes; with a gate, as its LFM2 does."""
    input_TX, weight_CK, bias_C = inputs
    gate_TC, values_TC = None, input_TX
    if is_gated:
        input_gate_TC, gate_TC, values_TC = input_TX.chunk(3, dim=1)
        values_TC = input_gate_TC * values_TC
    num_before = weight_CK.shape[1] - 1

    def compute(tail_JC: Tensor | None, tokens: slice) -> tuple[Tensor, Tensor]:
        tail_JC = values_TC.new_zeros(num_before, values_TC.shape[1]) if tail_JC is None else tail_JC
        all_TC = torch.cat((tail_JC, values_TC[tokens]))
        bias = None if bias_C is None else bias_C.float()
        activation = None if is_gated else "silu"
        out_TC = causal_conv1d_fn(all_TC.float().T[None], weight_CK.float(), bias, activation)[0].T[num_before:]
        return out_TC if gate_TC is None else out_TC * gate_TC[tokens].float(), all_TC[len(all_TC) - num_before :]

    return expect_rows(rows, tails, compute)


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", DTYPES)
@each_case("is_gated", [True, False])
def test_equals_transformers(is_gated: bool, dtype: torch.dtype, device: str) -> None:
    for has_bias, (num_channels, num_taps) in itertools.product((True, False), SIZES):
        with naming(num_channels=num_channels, num_taps=num_taps, has_bias=has_bias):
            check(num_channels, num_taps, dtype, device, is_gated=is_gated, has_bias=has_bias)


def check(num_channels: int, num_taps: int, dtype: torch.dtype, device: str, *, is_gated: bool, has_bias: bool) -> None:
    """Compares outputs and tails with those of transformers."""
    input_TX, weight_CK, bias_C = make_inputs(num_channels, num_taps, dtype, device, is_gated)
    inputs = input_TX, weight_CK, bias_C if has_bias else None
    tails, rows = make_states((num_taps - 1, num_channels), dtype, device), mixed_rows(device)
    expected, expected_tails = expect(inputs, tails, rows, is_gated)
    assert_close(short_conv(*inputs, tails, rows, is_gated=is_gated), expected, dtype)
    torch.testing.assert_close(tails, expected_tails, rtol=0, atol=0, equal_nan=True)


@each_case("dtype", DTYPES)
@each_case("is_gated", [True, False])
def test_a_decode_row_may_continue_from_an_earlier_one(is_gated: bool, dtype: torch.dtype) -> None:
    input_TX, weight, bias = make_inputs(35, 4, dtype, "cpu", is_gated)
    tails, slots = make_states((3, 35), dtype, "cpu"), {0: 3, 1: 5, 2: 4, 3: 1}
    together = tails.clone()
    row = one_row(CHAIN, 0, slots, "cpu")
    expected = short_conv(input_TX[:CHAIN], weight, bias, together, row, is_gated=is_gated)
    out = short_conv(input_TX[:CHAIN], weight, bias, tails, chained_rows(), is_gated=is_gated)
    assert_close(out, expected, dtype)
    torch.testing.assert_close(tails, together, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_writes_to_the_provided_tensor(device: str) -> None:
    inputs, rows = make_inputs(24, 4, torch.float32, device), mixed_rows(device)
    tails, out = make_states((3, 24), torch.float32, device), torch.full((NUM_TOKENS, 24), float("nan")).to(device)
    expected = short_conv(*inputs, tails.clone(), rows)
    assert short_conv(*inputs, tails, rows, out_TC=out) is out
    assert torch.equal(out, expected)


def test_refuses_sizes_that_do_not_fit() -> None:
    inputs, rows = make_inputs(24, 4, torch.float32, "cpu"), mixed_rows("cpu")
    for shape in ((4, 24), (3, 23)):
        with pytest.raises(AssertionError):
            short_conv(*inputs, make_states(shape, torch.float32, "cpu"), rows)
    with pytest.raises(AssertionError):
        short_conv(*inputs, make_states((3, 24), torch.float32, "cpu"), rows, is_gated=True)
