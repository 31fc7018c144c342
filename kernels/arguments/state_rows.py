"""The rows of a step, as the kernels that read and store recurrent states see them.

Shape legend: T tokens, B decode rows, C prefill rows, S slots, H value heads.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

LayerState = tuple[Tensor, ...]
"""The parts of a layer's states, each [S, ...], in the order of the layer's description."""


@dataclass(frozen=True)
class StateRows:
    """Where each row's state comes from and where it is stored; all columns int32.

    Tokens: those of the decode rows, one each, then those of the prefill rows, one row after another. On a CPU a row
    may read a slot that an earlier row of the step stores; on a GPU rows are independent.
    """

    num_decode_rows: int
    decode_sources: Tensor
    """[B]: the slot with the state before the row's token; -1: the sequence begins, all values are 0."""
    prefill_sources: Tensor
    """[C]: likewise, before the row's first token."""
    prefill_lens: Tensor
    """[C]: tokens of the row; 0 for the padding of a captured step."""
    slots: Tensor
    """[T]: the slot that receives the state after this token; -1: it is not stored. No slot twice in a row."""

    def check(self, num_tokens: int) -> None:
        columns = self.decode_sources, self.prefill_sources, self.prefill_lens, self.slots
        assert all(column.dtype == torch.int32 and column.is_contiguous() for column in columns)
        assert self.decode_sources.shape == (self.num_decode_rows,)
        assert self.prefill_sources.shape == self.prefill_lens.shape
        assert self.slots.shape == (num_tokens,)

    @cached_property
    def as_prefill_rows(self) -> "StateRows":
        """The same rows, with no decode rows among them: those come first, with one token each."""
        sources = torch.cat((self.decode_sources, self.prefill_sources))
        lens = torch.cat((torch.ones_like(self.decode_sources), self.prefill_lens))
        return StateRows(0, self.decode_sources[:0], sources, lens, self.slots)

    def sequences(self) -> Iterator[tuple[int, range]]:
        """Yields each row's source and the indices of its tokens. Waits for the device."""
        for token, source in enumerate(self.decode_sources.tolist()):
            yield source, range(token, token + 1)
        first = self.num_decode_rows
        for source, num_tokens in zip(self.prefill_sources.tolist(), self.prefill_lens.tolist(), strict=True):
            yield source, range(first, first + num_tokens)
            first += num_tokens

    def scan(self, states: Tensor, advance: Callable[[Tensor, int], Tensor]) -> None:
        """Calls `advance` with the state before each token and the token's index; it returns the state after it.

        States are read from and stored into the slots of `states` [S, ...].
        """
        slots_T = self.slots.tolist()
        for source, tokens in self.sequences():
            state = states[source].clone() if source >= 0 else torch.zeros_like(states[0])
            for token in tokens:
                state = advance(state, token)
                if slots_T[token] >= 0:
                    states[slots_T[token]] = state


class StateDecay(NamedTuple):
    """How a layer's heads forget. With the time step dt = softplus(t + bias), clamped, a state is multiplied by
    exp(rate * dt) before each token, where t is a value of the token and head."""

    rates: Tensor
    """float32 [H], negative: -exp(A_log) of checkpoints"""
    biases: Tensor
    """float32 [H]"""
    shortest: float = 0.0
    longest: float = math.inf

    def check(self, num_heads: int) -> None:
        assert self.rates.shape == self.biases.shape == (num_heads,)
        assert self.rates.dtype == self.biases.dtype == torch.float32

    def time_steps(self, time_TH: Tensor) -> Tensor:
        """Returns dt, float32 [T, H]."""
        return torch.nn.functional.softplus(time_TH.float() + self.biases).clamp_(self.shortest, self.longest)
