"""Shape legend: T tokens, H heads, G groups, V values per head, D state size."""

import math

import pytest
import torch
from torch import Tensor
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

from kernels.arguments.state_rows import StateDecay, StateRows
from kernels.operations.mamba_scan import mamba_scan
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case
from tests.kernels.state_cases import (
    CHAIN,
    NUM_TOKENS,
    assert_states,
    chained_rows,
    expect_rows,
    make_decay,
    make_states,
    mixed_rows,
    one_row,
)

SHAPES = [(4, 1, 64, 128), (6, 2, 32, 16), (3, 3, 7, 5), (2, 1, 20, 24), (1, 1, 3, 300), (1, 1, 1, 1)]
"""Heads, groups, values per head, state size."""

Inputs = tuple[Tensor, Tensor, StateDecay, Tensor]


def make_inputs(
    shape: tuple[int, int, int, int], num_tokens: int, dtype: torch.dtype, device: str, **limits: float
) -> Inputs:
    """Returns x, B and C, and time steps, as parts of one tensor, the decay and the skips."""
    num_heads, num_groups, value_size, state_size = shape
    sizes = num_heads * value_size + 2 * num_groups * state_size, num_heads
    xbc, time = torch.randn(num_tokens, sum(sizes)).mul(0.5).to(device, dtype).split(sizes, 1)
    return xbc, time, make_decay(num_heads, device, **limits), torch.randn(num_heads).to(device)


def expect(shape: tuple[int, int, int, int], inputs: Inputs, states: Tensor, rows: StateRows) -> tuple[Tensor, Tensor]:
    """What transformers computes."""
    num_heads, num_groups, value_size, state_size = shape
    xbc, time, decay, skip = inputs
    x, b, c = xbc.float().split((num_heads * value_size, num_groups * state_size, num_groups * state_size), 1)

    def compute(state: Tensor | None, tokens: slice) -> tuple[Tensor, Tensor]:
        out, after = mamba2_chunk_scan(
            x[tokens].unflatten(1, (num_heads, value_size))[None],
            time[tokens].float()[None],
            decay.rates,
            *(part[tokens].unflatten(1, (num_groups, state_size))[None] for part in (b, c)),
            chunk_size=16,
            D=skip,
            dt_bias=decay.biases,
            initial_states=None if state is None else state[None],
            dt_softplus=True,
            dt_limit=(decay.shortest, decay.longest),
            return_final_states=True,
        )
        return out[0].flatten(1), after[0]

    return expect_rows(rows, states, compute)


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case("limits", [(0.0, math.inf), (0.2, 0.9)])
@each_case("shape", SHAPES)
def test_equals_transformers(
    shape: tuple[int, int, int, int], limits: tuple[float, float], dtype: torch.dtype, device: str
) -> None:
    inputs = make_inputs(shape, NUM_TOKENS, dtype, device, shortest=limits[0], longest=limits[1])
    matrices, rows = make_states((shape[0], *shape[2:]), torch.float32, device), mixed_rows(device)
    expected, expected_matrices = expect(shape, inputs, matrices, rows)
    assert_close(mamba_scan(*inputs, matrices, rows), expected, dtype)
    assert_states(matrices, expected_matrices)


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_a_decode_row_may_continue_from_an_earlier_one(shape: tuple[int, int, int, int]) -> None:
    inputs = make_inputs(shape, CHAIN, torch.float32, "cpu")
    matrices, rows = make_states((shape[0], *shape[2:]), torch.float32, "cpu"), chained_rows()
    together, slots = matrices.clone(), {0: 3, 1: 5, 2: 4, 3: 1}
    expected = mamba_scan(*inputs, together, one_row(CHAIN, 0, slots, "cpu"))
    assert_close(mamba_scan(*inputs, matrices, rows), expected, torch.float32)
    assert_states(matrices, together)


@pytest.mark.parametrize("device", DEVICES)
def test_writes_to_the_provided_tensor(device: str) -> None:
    inputs, rows = make_inputs(SHAPES[1], NUM_TOKENS, torch.float32, device), mixed_rows(device)
    matrices = make_states((6, 32, 16), torch.float32, device)
    expected, out = mamba_scan(*inputs, matrices.clone(), rows), torch.full((NUM_TOKENS, 192), float("nan")).to(device)
    assert mamba_scan(*inputs, matrices, rows, out) is out
    assert torch.equal(out, expected)


def test_refuses_sizes_that_do_not_fit() -> None:
    inputs, rows = make_inputs(SHAPES[1], NUM_TOKENS, torch.float32, "cpu"), mixed_rows("cpu")
    for shape in ((6, 32, 15), (5, 32, 16), (6, 64, 16)):
        with pytest.raises(AssertionError):
            mamba_scan(*inputs, make_states(shape, torch.float32, "cpu"), rows)
    with pytest.raises(AssertionError):
        mamba_scan(*inputs, make_states((6, 32, 16), torch.bfloat16, "cpu"), rows)
