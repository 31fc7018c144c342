"""The causal depthwise convolution before a recurrent layer's state, over the last few tokens of a sequence.

Shape legend: T tokens, C channels, X = C or, gated, 3 C, K taps, J = K - 1, S slots.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.state_rows import StateRows
from kernels.dispatch import call


def short_conv(
    input_TX: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    tail_SJC: Tensor,
    rows: StateRows,
    *,
    is_gated: bool = False,
    out_TC: Tensor | None = None,
) -> Tensor:
    """Returns silu(sum over k of weight[:, k] * input[t - J + k] + bias), computed in float32.

    With `is_gated`, as in LFM2, the input is B | C | x: B * x, rounded, is convolved, and the result is C * it,
    without silu. A slot of `tail_SJC` holds the last J inputs of the convolution, oldest first; a new sequence begins
    with zeros. Rows of the input may lie apart. Outputs beyond the rows' tokens (the padding of a captured step) are
    undefined. The result may be written to `out_TC`.
    """
    num_channels, num_taps = weight_CK.shape
    assert input_TX.shape[1] == (3 if is_gated else 1) * num_channels
    assert input_TX.stride(1) == 1
    assert tail_SJC.shape[1:] == (num_taps - 1, num_channels)
    assert tail_SJC.is_contiguous()
    assert input_TX.dtype == weight_CK.dtype == tail_SJC.dtype
    assert bias_C is None or (bias_C.shape == (num_channels,) and bias_C.dtype == input_TX.dtype)
    rows.check(len(input_TX))
    out_TC = input_TX.new_empty(len(input_TX), num_channels) if out_TC is None else out_TC
    assert out_TC.shape == (len(input_TX), num_channels)
    assert out_TC.dtype == input_TX.dtype
    arguments = input_TX, weight_CK, bias_C, tail_SJC, rows, is_gated, out_TC
    call("short_conv", input_TX, short_conv_reference, *arguments)
    return out_TC


def short_conv_reference(
    input_TX: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    tail_SJC: Tensor,
    rows: StateRows,
    is_gated: bool,
    out_TC: Tensor,
) -> None:
    weight_KC, values_TC, gate_TC = weight_CK.T.float(), input_TX, None
    if is_gated:
        input_gate_TC, gate_TC, values_TC = input_TX.chunk(3, dim=1)
        values_TC = input_gate_TC * values_TC

    def advance(tail_JC: Tensor, token: int) -> Tensor:
        window_KC = torch.cat((tail_JC, values_TC[token : token + 1]))
        out_C = (window_KC.float() * weight_KC).sum(0)
        if bias_C is not None:
            out_C += bias_C.float()
        out_TC[token] = functional.silu(out_C) if gate_TC is None else out_C * gate_TC[token].float()
        return window_KC[1:]

    rows.scan(tail_SJC, advance)
