"""Calls of the C kernels of recurrent states, as in `launchers.py`."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from kernels.arguments.state_rows import StateDecay, StateRows
from kernels.cpu.addresses import address_of, addresses_of
from kernels.cpu.library import Kernel

MAX_TAPS, MAX_STATE_SIZE = 8, 256


def _row_addresses(rows: StateRows) -> list[int | None]:
    return addresses_of(rows.decode_sources, rows.prefill_sources, rows.prefill_lens, rows.slots)


def short_conv(
    kernel: Kernel,
    input_TX: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    tail_SJC: Tensor,
    rows: StateRows,
    is_gated: bool,
    out_TC: Tensor,
) -> Any:
    if weight_CK.shape[1] > MAX_TAPS:
        return NotImplemented
    addresses = (
        input_TX.data_ptr(),
        *addresses_of(weight_CK, bias_C, tail_SJC),
        *_row_addresses(rows),
        address_of(out_TC),
    )
    counts = rows.num_decode_rows, len(rows.prefill_lens)
    kernel(*addresses, *counts, *weight_CK.shape, input_TX.stride(0), is_gated)
    return None


def mamba_scan(
    kernel: Kernel,
    xbc_TX: Tensor,
    time_TH: Tensor,
    decay: StateDecay,
    skip_H: Tensor,
    matrix_SHVD: Tensor,
    rows: StateRows,
    out_TN: Tensor,
) -> Any:
    num_heads, value_size, state_size = matrix_SHVD.shape[1:]
    if state_size > MAX_STATE_SIZE:
        return NotImplemented
    kernel(
        *(xbc_TX.data_ptr(), time_TH.data_ptr(), *addresses_of(decay.rates, decay.biases, skip_H, matrix_SHVD)),
        *(*_row_addresses(rows), address_of(out_TN)),
        *(rows.num_decode_rows, len(rows.prefill_lens), xbc_TX.stride(0), time_TH.stride(0)),
        *(num_heads, value_size, state_size, (xbc_TX.shape[1] - num_heads * value_size) // (2 * state_size)),
        *(decay.shortest, decay.longest),
    )
    return None


STATE_LAUNCHERS: dict[str, Callable[..., Any]] = {launcher.__name__: launcher for launcher in (short_conv, mamba_scan)}
"""By operation."""
