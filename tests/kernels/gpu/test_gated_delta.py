"""Shape legend: T tokens, H value heads, G key heads, D key size, V value size, S slots."""

import dataclasses
from collections import Counter

import pytest
import torch
from torch import Tensor

from kernels.arguments.state_rows import StateDecay, StateRows
from kernels.operations.gated_delta import gated_delta, gated_delta_reference
from tests.kernels.cases import DEVICES, TOLERANCES, assert_close
from tests.kernels.gpu.huge_memory import make_huge
from tests.kernels.state_cases import NUM_TOKENS, make_decay, make_states, mixed_rows, one_row, with_padding

Shape = tuple[int, int, int, int]
"""Value heads, key heads, key size, value size."""

CASES = [
    ((2, 1, 64, 24), False, torch.float32),
    ((4, 2, 16, 16), True, torch.bfloat16),
    ((1, 1, 5, 7), False, torch.float16),
    *([((32, 16, 128, 128), False, torch.bfloat16)] if DEVICES[-1] == "cuda" else []),
]
"""With heads in the order of GGUF files or not."""


def make_inputs(shape: Shape, num_tokens: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, StateDecay]:
    """Returns queries, keys and values, and gates, as parts of one tensor, and the decay."""
    num_heads, num_key_heads, key_size, value_size = shape
    sizes = 2 * num_key_heads * key_size + num_heads * value_size, 2 * num_heads
    qkv, gates = torch.randn(num_tokens, sum(sizes)).to(device, dtype).split(sizes, 1)
    return qkv, gates, make_decay(num_heads, device)


def check(
    inputs: tuple[Tensor, Tensor, StateDecay], states: Tensor, rows: StateRows, *, has_tiled_heads: bool = False
) -> None:
    """Compares outputs and all slots with the reference's."""
    expected_states, dtype = states.clone(), inputs[0].dtype
    expected = torch.empty(len(inputs[0]), states.shape[1] * states.shape[3], dtype=dtype, device=states.device)
    gated_delta_reference(*inputs, expected_states, rows, has_tiled_heads, expected)
    assert_close(gated_delta(*inputs, states, rows, has_tiled_heads=has_tiled_heads), expected, dtype)
    tolerance = TOLERANCES[torch.float32] * (1 if dtype == torch.float32 else 10)
    torch.testing.assert_close(states, expected_states, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize(("shape", "has_tiled_heads", "dtype"), CASES, ids=str)
def test_equals_its_reference(
    shape: Shape, has_tiled_heads: bool, dtype: torch.dtype, device: str, backend: Counter[str]
) -> None:
    states = make_states((shape[0], *shape[2:]), torch.float32, device)
    inputs = make_inputs(shape, NUM_TOKENS, dtype, device)
    check(inputs, states, mixed_rows(device), has_tiled_heads=has_tiled_heads)
    assert backend["gated_delta"] == 1


def test_states_amid_chunks_and_at_their_ends(device: str) -> None:
    states = make_states((1, 16, 16), torch.float32, device)
    rows = one_row(150, 2, {0: 4, 1: 5, 62: 6, 63: 1, 64: 8, 127: 0, 140: 3, 149: 2}, device)
    check(make_inputs((1, 1, 16, 16), 150, torch.float32, device), states, rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_that_repeat(dtype: torch.dtype, device: str) -> None:
    """Without decay the sum of powers of such a chunk's matrix has terms of 10^17, and an inverse of ones and zeros."""
    qkv, gates, decay = make_inputs((1, 1, 16, 16), 64, dtype, device)
    qkv[:, 16:32], gates[:, 0], gates[:, 1] = qkv[0, 16:32].clone(), 20.0, -50.0
    check((qkv, gates, decay), make_states((1, 16, 16), torch.float32, device), one_row(64, -1, {63: 1}, device))


def test_a_padded_step(device: str) -> None:
    """Beyond the rows and their tokens nothing is read or written."""
    inputs, rows = make_inputs((1, 1, 16, 16), NUM_TOKENS, torch.float32, device), mixed_rows(device)
    states = make_states((1, 16, 16), torch.float32, device)
    padded, expected_states = states.clone(), states.clone()
    expected = gated_delta(*inputs, expected_states, rows)
    qkv, gates = (torch.cat((part, torch.full_like(part[:30], float("nan")))) for part in inputs[:2])
    out = torch.full((NUM_TOKENS + 30, 16), float("nan"), device=device)
    gated_delta(qkv, gates, inputs[2], padded, with_padding(rows, 20, 30), out_TN=out)
    assert torch.equal(out[:NUM_TOKENS], expected)
    assert bool(out[NUM_TOKENS:].isnan().all())
    torch.testing.assert_close(padded, expected_states, rtol=0, atol=0, equal_nan=True)


def test_slots_beyond_31_bits_of_elements(device: str) -> None:
    huge = make_huge((1 << 23) + 4, (1, 16, 16), torch.float32, device)
    last = len(huge) - 1
    small, inputs = torch.randn(2, 1, 16, 16).to(device), make_inputs((1, 1, 16, 16), 3, torch.float32, device)
    huge[last - 1 :] = small
    column = torch.tensor([0, 1, 2, 0, -1, 1], dtype=torch.int32, device=device)
    rows = StateRows(1, column[:1], column[1:2], column[2:3], column[3:])
    moved = torch.where(column < 0, -1, column + last - 1).int()
    there = StateRows(1, moved[:1], moved[1:2], column[2:3], moved[3:])
    assert torch.equal(gated_delta(*inputs, huge, there), gated_delta(*inputs, small, rows))
    assert torch.equal(huge[last - 1 :], small)
    assert not bool(huge[:4].any())


def test_rows_alone_give_the_same_bits(device: str) -> None:
    """Chunks begin at a row's first token, whatever else is in the step."""
    inputs = make_inputs((1, 1, 16, 16), 100, torch.float32, device)
    states = make_states((1, 16, 16), torch.float32, device)
    both = one_row(100, 2, {99: 5}, device)
    both = dataclasses.replace(
        both,
        prefill_sources=torch.tensor([2, 3], dtype=torch.int32, device=device),
        prefill_lens=torch.tensor([30, 70], dtype=torch.int32, device=device),
    )
    alone = one_row(70, 3, {69: 6}, device)
    out = gated_delta(*inputs, states, both)
    assert torch.equal(gated_delta(inputs[0][30:], inputs[1][30:], inputs[2], states, alone), out[30:])
    assert torch.equal(states[5], states[6])
