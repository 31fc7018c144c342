"""The Triton kernel of `short_conv`: a program takes some channels of a row, block by block of its tokens.

Shape legend: T tokens, C channels, X = C or, gated, 3 C, K taps, J = K - 1, S slots; in a program M tokens.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.state_rows import StateRows
from kernels.gpu.launch_table import find_launch, has_fixed_launches
from kernels.gpu.state_chunks import MAX_ROW_PROGRAMS, count_tokens_before, end_of_rows


def short_conv(
    input_TX: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    tail_SJC: Tensor,
    rows: StateRows,
    is_gated: bool,
    out_TC: Tensor,
) -> None:
    num_channels, num_taps = weight_CK.shape
    rows = rows.as_prefill_rows if has_fixed_launches() else rows
    num_decode, num_prefill = rows.num_decode_rows, len(rows.prefill_lens)
    assert weight_CK.is_contiguous()
    assert bias_C is None or bias_C.is_contiguous()
    assert out_TC.is_contiguous()
    arguments = input_TX, input_TX.stride(0), weight_CK, input_TX if bias_C is None else bias_C, tail_SJC
    columns = rows.slots, rows.prefill_lens, num_decode
    for is_decode, num_rows, sources in (
        (True, num_decode, rows.decode_sources),
        (False, num_prefill, rows.prefill_sources),
    ):
        launch = find_launch("short_conv", is_decode)
        num_programs = num_rows if is_decode else min(num_rows, MAX_ROW_PROGRAMS)
        if num_rows:
            convolve[(triton.cdiv(num_channels, launch["BLOCK_C"]), num_programs)](
                *(*arguments, *columns, num_rows, sources, out_TC),
                NUM_CHANNELS=num_channels,
                NUM_TAPS=num_taps,
                HAS_BIAS=bias_C is not None,
                IS_GATED=is_gated,
                IS_DECODE=is_decode,
                **launch,
            )


@triton.jit(do_not_specialize=["num_rows", "num_decode"])
def convolve(
    input,
    stride,
    weight,
    bias,
    tail,
    slots,
    lens,
    num_decode,
    num_rows,
    sources,
    out,
    NUM_CHANNELS: tl.constexpr,
    NUM_TAPS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_DECODE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    index_M, channel_C = tl.arange(0, BLOCK_M), tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    is_C = channel_C < NUM_CHANNELS
    TAIL: tl.constexpr = NUM_TAPS - 1
    end = num_rows if IS_DECODE else end_of_rows(lens, num_rows)
    for row in range(tl.program_id(1), end, tl.num_programs(1)):
        if IS_DECODE:
            num_tokens, first = 1, tl.program_id(1).to(tl.int64)
        else:
            num_tokens, first = tl.load(lens + row), num_decode + count_tokens_before(lens, row)
        source = tl.load(sources + row)
        for start in range(0, num_tokens, BLOCK_M):
            token_M = first + start + index_M
            is_M = start + index_M < num_tokens
            is_MC = is_M[:, None] & is_C[None, :]
            window = ()
            sum_MC = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
            for TAP in tl.static_range(NUM_TAPS):
                place_M = start + index_M - TAIL + TAP
                is_new_MC = is_MC & (place_M >= 0)[:, None]
                input_MC = input + (token_M - TAIL + TAP)[:, None] * stride + channel_C[None, :]
                if IS_GATED:
                    gate_MC = tl.load(input_MC, mask=is_new_MC, other=0.0).to(tl.float32)
                    x_MC = tl.load(input_MC + 2 * NUM_CHANNELS, mask=is_new_MC, other=0.0).to(tl.float32)
                    x_MC = (gate_MC * x_MC).to(input.dtype.element_ty)
                else:
                    x_MC = tl.load(input_MC, mask=is_new_MC, other=0.0)
                tail_M = source.to(tl.int64) * TAIL + TAIL + place_M
                is_old_MC = is_MC & ((place_M < 0) & (tail_M >= 0))[:, None]
                old_MC = tl.load(tail + tail_M[:, None] * NUM_CHANNELS + channel_C[None, :], mask=is_old_MC, other=0.0)
                x_MC = tl.where((place_M < 0)[:, None], old_MC, x_MC)
                window = window + (x_MC,)  # noqa: RUF005 Triton has no starred expressions
                weight_C = tl.load(weight + channel_C * NUM_TAPS + TAP, mask=is_C, other=0.0).to(tl.float32)
                sum_MC += x_MC.to(tl.float32) * weight_C[None, :]
            if HAS_BIAS:
                sum_MC += tl.load(bias + channel_C, mask=is_C, other=0.0).to(tl.float32)[None, :]
            if IS_GATED:
                gate_MC = input + token_M[:, None] * stride + NUM_CHANNELS + channel_C[None, :]
                sum_MC *= tl.load(gate_MC, mask=is_MC, other=0.0).to(tl.float32)
            else:
                sum_MC = sum_MC / (1.0 + tl.exp(-sum_MC))
            out_MC = out + token_M[:, None] * NUM_CHANNELS + channel_C[None, :]
            tl.store(out_MC, sum_MC.to(out.dtype.element_ty), mask=is_MC)
            slot_M = tl.load(slots + token_M, mask=is_M, other=-1)
            is_stored_MC = (slot_M >= 0)[:, None] & is_C[None, :]
            tl.debug_barrier()  # a slot may be the row's source: no thread stores before all have read
            for TAP in tl.static_range(TAIL):
                place_M = slot_M.to(tl.int64) * TAIL + TAP
                stored_MC = tail + place_M[:, None] * NUM_CHANNELS + channel_C[None, :]
                tl.store(stored_MC, window[TAP + 1], mask=is_stored_MC)
