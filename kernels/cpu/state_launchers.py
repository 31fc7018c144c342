"""Calls of the C kernels of recurrent and of kept hidden states, as in `launchers.py`."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from kernels.arguments.state_rows import StateDecay, StateRows
from kernels.cpu.addresses import address_of, addresses_of
from kernels.cpu.library import Kernel

MAX_TAPS, MAX_STATE_SIZE = 8, 256
MAX_KEY_SIZE, MAX_VALUE_SIZE, VALUE_BLOCK = 256, 256, 32
"""The sizes that `gated_delta` computes; value sizes are multiples of `VALUE_BLOCK`."""


def _row_addresses(rows: StateRows) -> list[int | None]:
    return addresses_of(rows.decode_sources, rows.prefill_sources, rows.prefill_lens, rows.slots)


def short_conv(
    kernel: Kernel,
    input_TX: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    tail_SJC: Tensor,
    rows: StateRows,
    *rest: Any,
) -> Any:
    is_gated, out_TC = rest
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
    *rest: Any,
) -> Any:
    rows, out_TN = rest
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


def gated_delta(
    kernel: Kernel,
    qkv_TX: Tensor,
    gates_TB: Tensor,
    decay: StateDecay,
    matrix_SHDV: Tensor,
    rows: StateRows,
    *rest: Any,
) -> Any:
    has_tiled_heads, out_TN = rest
    num_heads, key_size, value_size = matrix_SHDV.shape[1:]
    if key_size > MAX_KEY_SIZE or value_size > MAX_VALUE_SIZE or value_size % VALUE_BLOCK:
        return NotImplemented
    kernel(
        *(qkv_TX.data_ptr(), gates_TB.data_ptr(), *addresses_of(decay.rates, decay.biases, matrix_SHDV)),
        *(*_row_addresses(rows), address_of(out_TN)),
        *(rows.num_decode_rows, len(rows.prefill_lens), qkv_TX.stride(0), gates_TB.stride(0)),
        *(num_heads, (qkv_TX.shape[1] - num_heads * value_size) // (2 * key_size), key_size, value_size),
        has_tiled_heads,
    )
    return None


def gated_norm(
    kernel: Kernel,
    values_TN: Tensor,
    gate_TN: Tensor,
    weight_W: Tensor | None,
    eps: float,
    group_size: int,
    norms_first: bool,
) -> None:
    weight_size = group_size if weight_W is None else len(weight_W)
    strides = values_TN.stride(0), gate_TN.stride(0)
    addresses = values_TN.data_ptr(), gate_TN.data_ptr(), address_of(weight_W)
    kernel(*addresses, *values_TN.shape, *strides, group_size, weight_size, norms_first, eps)


def sigmoid_gate(kernel: Kernel, values_TA: Tensor, gate_TA: Tensor) -> None:
    strides = values_TA.stride(0), gate_TA.stride(0)
    kernel(values_TA.data_ptr(), gate_TA.data_ptr(), *values_TA.shape, *strides)


def store_hidden(kernel: Kernel, hidden_TE: Tensor, slots_T: Tensor, kept_SE: Tensor) -> None:
    kernel(*addresses_of(hidden_TE, slots_T, kept_SE), *hidden_TE.shape)


def join_hidden(kernel: Kernel, embedded_TE: Tensor, kept_SE: Tensor, slots_T: Tensor, *rest: Any) -> Tensor:
    weights, eps = rest
    num_tokens, size = embedded_TE.shape
    out_TJ = embedded_TE.new_empty(num_tokens, 2 * size)
    kernel(*addresses_of(embedded_TE, kept_SE, slots_T, *weights, out_TJ), num_tokens, size, eps)
    return out_TJ


STATE_LAUNCHERS: dict[str, Callable[..., Any]] = {
    launcher.__name__: launcher
    for launcher in (short_conv, mamba_scan, gated_delta, gated_norm, sigmoid_gate, store_hidden, join_hidden)
}
"""By operation."""
