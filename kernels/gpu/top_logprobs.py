"""The Triton kernel of `top_logprobs`: two reads of the logits, no sort.

Shape legend: N rows, V vocabulary, K likeliest tokens, C parts of a row.
A logprob and its token are one 64-bit key: the larger key is the larger logprob and, of equals, the smaller token. Keys
are unique, so the best K are K maxima, each of what lies below the one before; of each part, then of all parts.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch_table import find_launch

MAX_TOP = 64
"""More maxima take longer than a sort."""
USUAL_TOP = 20
"""The API's maximum: smaller counts are padded to it, so that none is compiled while serving."""
LAST_ID = tl.constexpr(0x7FFFFFFF)
"""All bits: a token is combined with it so that the smaller token gives the larger key."""
VIEWS = ("maxima_ptr", "sums_ptr", "ids_ptr")
"""Arguments that begin anywhere in a larger tensor."""
NO_KEY = tl.constexpr(-(1 << 63))
BEYOND_KEYS = tl.constexpr((1 << 63) - 1)


def top_logprobs(logits_NV: Tensor, ids_N: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    if num_top > MAX_TOP:
        return NotImplemented
    num_rows, vocab_size = logits_NV.shape
    assert logits_NV.stride(1) == 1 or vocab_size == 1
    device, block = logits_NV.device, find_launch("top_logprobs", vocab_size)
    num_parts = triton.cdiv(vocab_size, block["BLOCK"])
    sizes = {"VOCAB": vocab_size, "NUM_PARTS": num_parts, "PARTS_BLOCK": triton.next_power_of_2(num_parts)}
    maxima_NC, sums_NC = torch.empty((2, num_rows, num_parts), dtype=torch.float32, device=device)
    keys_NCK = torch.empty((num_rows, num_parts, num_top), dtype=torch.int64, device=device)
    logprobs_N = torch.empty(num_rows, dtype=torch.float32, device=device)
    top_ids_NK = torch.empty((num_rows, num_top), dtype=torch.int32, device=device)
    top_logprobs_NK = torch.empty((num_rows, num_top), dtype=torch.float32, device=device)
    logits = (logits_NV, logits_NV.stride(0))
    part_sums_kernel[(num_rows, num_parts)](*logits, maxima_NC, sums_NC, VOCAB=vocab_size, **block)
    if num_top:
        part_keys_kernel[(num_rows, num_parts)](*logits, maxima_NC, sums_NC, keys_NCK, num_top, **sizes, **block)
    row_top_kernel[(num_rows,)](
        *logits,
        maxima_NC,
        sums_NC,
        ids_N.to(torch.int32),
        keys_NCK,
        logprobs_N,
        top_ids_NK,
        top_logprobs_NK,
        num_top,
        **sizes,
        **find_launch("top_logprobs_row", num_parts * max(num_top, USUAL_TOP)),
    )
    return logprobs_N, top_ids_NK, top_logprobs_NK


@triton.jit(do_not_specialize_on_alignment=VIEWS)
def part_sums_kernel(logits_ptr, row_stride, maxima_ptr, sums_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    tokens = part * BLOCK + tl.arange(0, BLOCK)
    row_ptr = logits_ptr + row.to(tl.int64) * row_stride
    x = tl.load(row_ptr + tokens, mask=tokens < VOCAB, other=float("-inf")).to(tl.float32)
    best = tl.max(x, 0)
    total = tl.sum(tl.where(x == float("-inf"), 0.0, tl.exp(x - best)), 0)
    place = row * tl.num_programs(1) + part
    tl.store(maxima_ptr + place, best)
    tl.store(sums_ptr + place, total)


@triton.jit(do_not_specialize=["num_top"], do_not_specialize_on_alignment=VIEWS)
def part_keys_kernel(
    logits_ptr,
    row_stride,
    maxima_ptr,
    sums_ptr,
    keys_ptr,
    num_top,
    VOCAB: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, part = tl.program_id(0), tl.program_id(1)
    tokens = part * BLOCK + tl.arange(0, BLOCK)
    best, log_total = _row_totals(maxima_ptr, sums_ptr, row, NUM_PARTS, PARTS_BLOCK)
    row_ptr = logits_ptr + row.to(tl.int64) * row_stride
    x = tl.load(row_ptr + tokens, mask=tokens < VOCAB, other=float("-inf")).to(tl.float32)
    bits = ((x - best) - log_total).to(tl.int32, bitcast=True)
    keys = (_order(bits).to(tl.int64) << 32) | (tokens ^ LAST_ID).to(tl.int64)
    keys = tl.where(tokens < VOCAB, keys, NO_KEY)
    last = tl.full([], BEYOND_KEYS, tl.int64)
    first_ptr = keys_ptr + (row * NUM_PARTS + part).to(tl.int64) * num_top
    for index in range(num_top):
        last = tl.max(tl.where(keys < last, keys, NO_KEY), 0)
        tl.store(first_ptr + index, last)


@triton.jit(do_not_specialize=["num_top"], do_not_specialize_on_alignment=VIEWS)
def row_top_kernel(
    logits_ptr,
    row_stride,
    maxima_ptr,
    sums_ptr,
    ids_ptr,
    keys_ptr,
    logprobs_ptr,
    top_ids_ptr,
    top_logprobs_ptr,
    num_top,
    VOCAB: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    best, log_total = _row_totals(maxima_ptr, sums_ptr, row, NUM_PARTS, PARTS_BLOCK)
    chosen = tl.load(ids_ptr + row)
    x = tl.load(logits_ptr + row.to(tl.int64) * row_stride + tl.maximum(chosen, 0)).to(tl.float32)
    tl.store(logprobs_ptr + row, tl.where(chosen >= 0, (x - best) - log_total, float("nan")))
    places = tl.arange(0, BLOCK)
    num_keys = NUM_PARTS * num_top
    keys = tl.load(keys_ptr + row.to(tl.int64) * num_keys + places, mask=places < num_keys, other=NO_KEY)
    last = tl.full([], BEYOND_KEYS, tl.int64)
    for index in range(num_top):
        last = tl.max(tl.where(keys < last, keys, NO_KEY), 0)
        tl.store(top_ids_ptr + row * num_top + index, (last & LAST_ID).to(tl.int32) ^ LAST_ID)
        logprob = _order((last >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
        tl.store(top_logprobs_ptr + row * num_top + index, logprob)


@triton.jit
def _row_totals(maxima_ptr, sums_ptr, row, NUM_PARTS: tl.constexpr, PARTS_BLOCK: tl.constexpr):
    """The largest logit of the row and the logarithm of the sum of exp(logit - largest)."""
    parts = tl.arange(0, PARTS_BLOCK)
    mask = parts < NUM_PARTS
    maxima = tl.load(maxima_ptr + row * NUM_PARTS + parts, mask=mask, other=float("-inf"))
    sums = tl.load(sums_ptr + row * NUM_PARTS + parts, mask=mask, other=0.0)
    best = tl.max(maxima, 0)
    return best, tl.log(tl.sum(sums * tl.exp(maxima - best), 0))


@triton.jit
def _order(bits):
    """Turns the bits of a float into an int32 of the same order, and back."""
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
