"""Shape legend: T tokens, H heads, G groups, V values per head, D state size."""

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from kernels.arguments.state_rows import StateDecay, StateRows
from kernels.operations.mamba_scan import mamba_scan, mamba_scan_reference
from tests.kernels.cases import DEVICES, TOLERANCES, assert_close
from tests.kernels.state_cases import NUM_TOKENS, make_decay, make_states, mixed_rows, one_row, with_padding

Shape = tuple[int, int, int, int]
"""Heads, groups, values per head, state size."""

CASES = [
    ((2, 1, 24, 64), (0.0, math.inf), torch.float32),
    ((2, 2, 16, 16), (0.2, 0.9), torch.bfloat16),
    ((1, 1, 7, 5), (0.0, math.inf), torch.float16),
    *([((48, 1, 64, 256), (0.0, math.inf), torch.bfloat16)] if DEVICES[-1] == "cuda" else []),
]

Inputs = tuple[Tensor, Tensor, StateDecay, Tensor]


def make_inputs(
    shape: Shape, num_tokens: int, dtype: torch.dtype, device: str, limits: tuple[float, float] = (0.0, math.inf)
) -> Inputs:
    """Returns x, B and C, and time steps, as parts of one tensor, the decay and the skips."""
    num_heads, num_groups, value_size, state_size = shape
    sizes = num_heads * value_size + 2 * num_groups * state_size, num_heads
    xbc, time = torch.randn(num_tokens, sum(sizes)).div(2).to(device, dtype).split(sizes, 1)
    decay = make_decay(num_heads, device)._replace(shortest=limits[0], longest=limits[1])
    return xbc, time, decay, torch.randn(num_heads).to(device)


def check(inputs: Inputs, states: Tensor, rows: StateRows) -> None:
    """Compares outputs and all slots with the reference's."""
    expected_states, dtype = states.clone(), inputs[0].dtype
    expected = torch.empty(len(inputs[0]), states.shape[1] * states.shape[2], dtype=dtype, device=states.device)
    mamba_scan_reference(*inputs, expected_states, rows, expected)
    assert_close(mamba_scan(*inputs, states, rows), expected, dtype)
    tolerance = TOLERANCES[torch.float32] * (1 if dtype == torch.float32 else 10)
    torch.testing.assert_close(states, expected_states, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize(("shape", "limits", "dtype"), CASES, ids=str)
def test_equals_its_reference(
    shape: Shape, limits: tuple[float, float], dtype: torch.dtype, device: str, backend: Counter[str]
) -> None:
    states = make_states((shape[0], *shape[2:]), torch.float32, device)
    check(make_inputs(shape, NUM_TOKENS, dtype, device, limits), states, mixed_rows(device))
    assert backend["mamba_scan"] == 1


def test_states_amid_chunks_and_at_their_ends(device: str) -> None:
    states = make_states((1, 16, 16), torch.float32, device)
    rows = one_row(150, 2, {0: 4, 1: 5, 62: 6, 63: 1, 64: 8, 127: 0, 140: 3, 149: 2}, device)
    check(make_inputs((1, 1, 16, 16), 150, torch.float32, device), states, rows)


@pytest.mark.parametrize("time", [-30.0, -8.0, 30.0])
def test_the_shortest_and_longest_time_steps(time: float, device: str) -> None:
    """Time steps of 10^-13 are exact; those of 30 make the state forget everything."""
    xbc, times, decay, skip = make_inputs((1, 1, 16, 16), 70, torch.float32, device)
    xbc = xbc.abs() * (2**20 if time < 0 else 1)  # nothing cancels
    inputs = xbc, torch.full_like(times, time), decay, torch.zeros_like(skip)
    check(inputs, make_states((1, 16, 16), torch.float32, device) * 1e-3, one_row(70, -1, {69: 1}, device))


def test_a_padded_step(device: str) -> None:
    """Beyond the rows and their tokens nothing is read or written."""
    inputs, rows = make_inputs((1, 1, 16, 16), NUM_TOKENS, torch.float32, device), mixed_rows(device)
    states = make_states((1, 16, 16), torch.float32, device)
    padded = states.clone()
    expected = mamba_scan(*inputs, states, rows)
    xbc, time = (torch.cat((part, torch.full_like(part[:30], float("nan")))) for part in inputs[:2])
    out = torch.full((NUM_TOKENS + 30, 16), float("nan"), device=device)
    mamba_scan(xbc, time, *inputs[2:], padded, with_padding(rows, 20, 30), out)
    assert torch.equal(out[:NUM_TOKENS], expected)
    assert bool(out[NUM_TOKENS:].isnan().all())
    torch.testing.assert_close(padded, states, rtol=0, atol=0, equal_nan=True)
