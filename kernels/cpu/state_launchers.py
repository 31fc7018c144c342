"""Calls of the C kernels of recurrent and of kept hidden states, as in `launchers.py`."""

from typing import Any

from torch import Tensor

from kernels.arguments.state_rows import StateDecay, StateRows
from kernels.cpu.addresses import address_of, addresses_of
from kernels.cpu.library import Kernel

MAX_TAPS, MAX_STATE_SIZE = 8, 256
MAX_KEY_SIZE, MAX_VALUE_SIZE, VALUE_BLOCK = 256, 256, 32
"""The sizes that `gated_delta` computes; value sizes are multiples of `VALUE_BLOCK`."""


def _of_rows(rows: StateRows) -> dict[str, int | None]:
    """Returns the arguments that `state_rows` has in C."""
    return {
        "decode_sources": address_of(rows.decode_sources),
        "prefill_sources": address_of(rows.prefill_sources),
        "prefill_lens": address_of(rows.prefill_lens),
        "slots": address_of(rows.slots),
        "num_decode_rows": rows.num_decode_rows,
        "num_prefill_rows": len(rows.prefill_lens),
    }


def short_conv(
    kernel: Kernel,
    input_TX: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    tail_SJC: Tensor,
    rows: StateRows,
    *rest: Any,
) -> Any:
    (num_channels, num_taps), (is_gated, out_TC) = weight_CK.shape, rest
    if num_taps > MAX_TAPS:
        return NotImplemented
    arguments = kernel.arguments(
        input=input_TX.data_ptr(),
        weight=address_of(weight_CK),
        bias=address_of(bias_C),
        tail=address_of(tail_SJC),
        out=address_of(out_TC),
        num_channels=num_channels,
        num_taps=num_taps,
        stride=input_TX.stride(0),
        is_gated=is_gated,
        **_of_rows(rows),
    )
    return kernel.run(arguments)


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
    arguments = kernel.arguments(
        xbc=xbc_TX.data_ptr(),
        time=time_TH.data_ptr(),
        rates=address_of(decay.rates),
        biases=address_of(decay.biases),
        skip=address_of(skip_H),
        matrices=address_of(matrix_SHVD),
        out=address_of(out_TN),
        stride=xbc_TX.stride(0),
        time_stride=time_TH.stride(0),
        num_heads=num_heads,
        value_size=value_size,
        state_size=state_size,
        num_groups=(xbc_TX.shape[1] - num_heads * value_size) // (2 * state_size),
        shortest=decay.shortest,
        longest=decay.longest,
        **_of_rows(rows),
    )
    return kernel.run(arguments)


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
    arguments = kernel.arguments(
        qkv=qkv_TX.data_ptr(),
        gates=gates_TB.data_ptr(),
        rates=address_of(decay.rates),
        biases=address_of(decay.biases),
        matrices=address_of(matrix_SHDV),
        out=address_of(out_TN),
        stride=qkv_TX.stride(0),
        gates_stride=gates_TB.stride(0),
        num_heads=num_heads,
        num_key_heads=(qkv_TX.shape[1] - num_heads * value_size) // (2 * key_size),
        key_size=key_size,
        value_size=value_size,
        has_tiled_heads=has_tiled_heads,
        **_of_rows(rows),
    )
    return kernel.run(arguments)


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
    addresses = values_TN.data_ptr(), gate_TN.data_ptr(), address_of(weight_W)
    sizes = *values_TN.shape, values_TN.stride(0), gate_TN.stride(0), group_size, weight_size
    kernel.run(kernel.arguments(*addresses, *sizes, norms_first, eps))


def sigmoid_gate(kernel: Kernel, values_TA: Tensor, gate_TA: Tensor) -> None:
    addresses, strides = (values_TA.data_ptr(), gate_TA.data_ptr(), None), (values_TA.stride(0), gate_TA.stride(0))
    kernel.run(kernel.arguments(*addresses, *values_TA.shape, *strides))


def store_hidden(kernel: Kernel, hidden_TE: Tensor, slots_T: Tensor, kept_SE: Tensor) -> None:
    x, kept, slots = addresses_of(hidden_TE, kept_SE, slots_T)
    num_tokens, size = hidden_TE.shape
    kernel.run(kernel.arguments(x=x, kept=kept, slots=slots, num_tokens=num_tokens, size=size))


def join_hidden(kernel: Kernel, embedded_TE: Tensor, kept_SE: Tensor, slots_T: Tensor, *rest: Any) -> Tensor:
    weights, eps = rest
    num_tokens, size = embedded_TE.shape
    out_TJ = embedded_TE.new_empty(num_tokens, 2 * size)
    kernel.run(kernel.arguments(*addresses_of(embedded_TE, kept_SE, slots_T, *weights, out_TJ), num_tokens, size, eps))
    return out_TJ
