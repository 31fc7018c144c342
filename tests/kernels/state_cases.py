"""Rows of recurrent states for the kernels' tests: sequences that begin, continue and are stored amid their tokens."""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.arguments.state_rows import StateDecay, StateRows
from tests.kernels.cases import TOLERANCES

NUM_SLOTS = 10
DECODE_SOURCES = [-1, 2, 3]
PREFILL_SOURCES, PREFILL_LENS = [-1, 0, 1, 7], [37, 5, 0, 1]
STORES = {0: 4, 1: 2, 2: -1, 3 + 15: 5, 3 + 31: 6, 3 + 36: 8, 3 + 37 + 1: 1, 3 + 37 + 4: 0, 3 + 37 + 5: 7}
"""The slots of tokens; slot 9 is never used. The others are -1."""
NUM_TOKENS = 3 + 37 + 5 + 1
CHAIN = 4
"""Decode rows of `chained_rows`."""


def int32(values: list[int], device: str) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def mixed_rows(device: str) -> StateRows:
    """Returns rows of every kind, as tokens 0 to `NUM_TOKENS`."""
    slots = int32([STORES.get(token, -1) for token in range(NUM_TOKENS)], device)
    sources = int32(DECODE_SOURCES, device), int32(PREFILL_SOURCES, device), int32(PREFILL_LENS, device)
    return StateRows(len(DECODE_SOURCES), *sources, slots)


def chained_rows() -> StateRows:
    """Returns the rows of a token and its drafts on a CPU: each continues from the slot of the one before."""
    nothing = int32([], "cpu")
    return StateRows(CHAIN, int32([0, 3, 5, 4], "cpu"), nothing, nothing, int32([3, 5, 4, 1], "cpu"))


def one_row(num_tokens: int, source: int, slots: dict[int, int], device: str) -> StateRows:
    """Returns one prefill row."""
    nothing, slots_T = int32([], device), int32([slots.get(token, -1) for token in range(num_tokens)], device)
    return StateRows(0, nothing, int32([source], device), int32([num_tokens], device), slots_T)


def make_states(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Returns slots of states; those that no row reads are NaN."""
    states = torch.full((NUM_SLOTS, *shape), float("nan"))
    states[[0, 2, 3, 7]] = torch.randn(4, *shape)
    return states.to(device, dtype)


def make_decay(num_heads: int, device: str, **limits: float) -> StateDecay:
    rates = -torch.rand(num_heads).mul(3).exp()
    return StateDecay(rates.to(device), torch.randn(num_heads).to(device), **limits)


def expect_rows(
    rows: StateRows, states: Tensor, compute: Callable[[Tensor | None, slice], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Returns the outputs of all tokens and the slots afterwards.

    `compute` returns the outputs of some tokens of one sequence after a state, and the state after the last of them.
    """
    states, slots, outputs = states.clone(), rows.slots.tolist(), []
    for source, tokens in rows.sequences():
        state = states[source].clone() if source >= 0 else None
        begin = tokens.start
        for token in tokens:
            if slots[token] >= 0 or token == tokens[-1]:
                output, state = compute(state, slice(begin, token + 1))
                outputs.append(output)
                begin = token + 1
                if slots[token] >= 0:
                    states[slots[token]] = state
    return torch.cat(outputs), states


def with_padding(rows: StateRows, num_rows: int, num_tokens: int) -> StateRows:
    """Returns the rows with places for more prefill rows, and for more tokens after theirs."""
    sources, lens, slots = (
        torch.cat((column, column.new_full((count,), padding)))
        for column, count, padding in (
            (rows.prefill_sources, num_rows, -1),
            (rows.prefill_lens, num_rows, 0),
            (rows.slots, num_tokens, -1),
        )
    )
    return StateRows(rows.num_decode_rows, rows.decode_sources, sources, lens, slots)


def assert_states(actual: Tensor, expected: Tensor) -> None:
    """Asserts that states are the expected ones; slots that were never stored are NaN in both."""
    tolerance = TOLERANCES[torch.float32]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
