"""Shape legend: T tokens, C channels, K taps, J = K - 1, S slots."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from kernels.arguments.state_rows import StateRows
from kernels.operations.short_conv import short_conv, short_conv_reference
from tests.kernels.cases import assert_close
from tests.kernels.gpu.huge_memory import make_huge
from tests.kernels.state_cases import NUM_TOKENS, make_states, mixed_rows, one_row, with_padding


def make_inputs(
    num_channels: int, num_taps: int, num_tokens: int, dtype: torch.dtype, device: str, *, is_gated: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns an input whose rows lie apart, the weight and, without a gate, the bias."""
    width = (3 if is_gated else 1) * num_channels
    parts = torch.randn(num_tokens, width + 5), torch.randn(num_channels, num_taps), torch.randn(num_channels)
    input_TX, weight_CK, bias_C = (part.to(device, dtype) for part in parts)
    return input_TX[:, 3:-2], weight_CK, None if is_gated else bias_C


def check(
    inputs: tuple[Tensor, Tensor, Tensor | None], tails: Tensor, rows: StateRows, *, is_gated: bool = False
) -> None:
    """Compares outputs and all slots with the reference's."""
    expected_tails, (input_TX, weight_CK, _) = tails.clone(), inputs
    expected = input_TX.new_empty(len(input_TX), len(weight_CK))
    short_conv_reference(*inputs, expected_tails, rows, is_gated, expected)
    assert_close(short_conv(*inputs, tails, rows, is_gated=is_gated), expected, tails.dtype)
    torch.testing.assert_close(tails, expected_tails, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("num_channels", "num_taps", "is_gated", "dtype"),
    [
        (96, 4, False, torch.float32),
        (83, 3, True, torch.bfloat16),
        (17, 4, True, torch.float16),
        (300, 4, False, torch.bfloat16),
        (1, 7, False, torch.float16),
    ],
)
def test_equals_its_reference(
    num_channels: int, num_taps: int, is_gated: bool, dtype: torch.dtype, device: str, backend: Counter[str]
) -> None:
    inputs = make_inputs(num_channels, num_taps, NUM_TOKENS, dtype, device, is_gated=is_gated)
    check(inputs, make_states((num_taps - 1, num_channels), dtype, device), mixed_rows(device), is_gated=is_gated)
    assert backend["short_conv"] == 1


def test_a_row_of_many_blocks_that_stores_into_its_source_first(device: str) -> None:
    tails = make_states((3, 20), torch.float32, device)
    rows = one_row(100, 2, {0: 2, 1: 4, 2: 5, 31: 6, 32: 3, 33: 0, 99: 8}, device)
    check(make_inputs(20, 4, 100, torch.float32, device), tails, rows)


def test_a_padded_step(device: str) -> None:
    """Beyond the rows and their tokens nothing is read or written."""
    inputs, rows = make_inputs(20, 4, NUM_TOKENS, torch.float32, device), mixed_rows(device)
    tails = make_states((3, 20), torch.float32, device)
    padded = tails.clone()
    expected = short_conv(*inputs, tails, rows)
    input_TX = torch.cat((inputs[0], torch.full_like(inputs[0][:30], float("nan"))))
    out = torch.full((NUM_TOKENS + 30, 20), float("nan"), device=device)
    short_conv(input_TX, *inputs[1:], padded, with_padding(rows, 20, 30), out_TC=out)
    assert torch.equal(out[:NUM_TOKENS], expected)
    assert bool(out[NUM_TOKENS:].isnan().all())
    torch.testing.assert_close(padded, tails, rtol=0, atol=0, equal_nan=True)


def test_slots_beyond_31_bits_of_elements(device: str) -> None:
    huge = make_huge((1 << 26) + 2, (3, 16), torch.float16, device)
    last, inputs = len(huge) - 1, make_inputs(16, 4, 3, torch.float16, device)
    huge[last] = torch.randn(3, 16).to(device).half()
    small = huge[last:].clone()
    out = short_conv(*inputs, huge, one_row(3, last, {2: last}, device))
    assert torch.equal(out, short_conv(*inputs, small, one_row(3, 0, {2: 0}, device)))
    assert torch.equal(huge[last:], small)
