"""Decode attention in Triton with fixed launches: the kernel of prompts, with tiles of one token, and a merge of parts.

Shape legend: R rows, H query heads, D head dimension; M is 1 in a program.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.paged_kv import PagedKV
from kernels.gpu.key_blocks import LOWEST
from kernels.gpu.launch_table import find_launch
from kernels.gpu.paged_prefill import add_split, attend_tiles
from kernels.plans.decode_work import DecodeWork
from kernels.plans.prefill_tiles import TILE_WORDS
from kernels.plans.split_work import SplitLayout, make_split_scratch, plan_split_work

_MERGED_AT_A_TIME = tl.constexpr(4)
"""Parts whose loads do not wait for each other."""


def paged_decode(
    query_RHD: Tensor,
    cache: PagedKV,
    page_tables_RP: Tensor,
    num_keys_R: Tensor,
    options: AttentionOptions,
    out_RHD: Tensor,
    work: DecodeWork | None,
) -> None:
    """Without `work` the list is planned here, which waits for the device."""
    if work is None:
        work = _plan_here(query_RHD, cache, num_keys_R, options.window)
    layout, scratch, (num_heads, head_dim) = work.layout, work.scratch, query_RHD.shape[1:]
    assert isinstance(layout, SplitLayout)
    assert work.plan.shape == (layout.num_words,)
    tiles, first_parts = work.plan[: layout.parts_word].view(-1, TILE_WORDS), work.plan[layout.parts_word :]
    attend_tiles(query_RHD, cache, (page_tables_RP, num_keys_R, tiles), options, out_RHD, scratch)
    merge[(layout.max_rows * num_heads,)](
        *(first_parts, scratch.partials, *scratch.lses.chunk(2), out_RHD),
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        **find_launch("split_merge", head_dim),
    )


def _plan_here(query_RHD: Tensor, cache: PagedKV, num_keys_R: Tensor, window: int | None) -> DecodeWork:
    (num_rows, num_heads, head_dim), device = query_RHD.shape, query_RHD.device
    layout = SplitLayout(num_rows, num_heads)
    plan, num_keys = torch.zeros(layout.num_words, dtype=torch.int32), num_keys_R.cpu().numpy()
    plan_split_work(layout, num_keys, num_keys, cache.page_size, plan.numpy(), window)
    return DecodeWork(layout, plan.to(device), make_split_scratch(layout, head_dim, device))


@triton.jit(do_not_specialize_on_alignment=["first_parts", "out"])
def merge(
    first_parts, partials, maxima, sums, out, NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Adds the parts of a row that has some; its first one includes the sink."""
    row = tl.program_id(0) // NUM_HEADS
    head = tl.program_id(0) % NUM_HEADS
    first_part, end_part = tl.load(first_parts + row), tl.load(first_parts + row + 1)
    if first_part == end_part:
        return
    dim_D = tl.arange(0, BLOCK_D)
    out_MD = merge_parts(first_part, end_part, partials, maxima, sums, NUM_HEADS, head, HEAD_DIM, BLOCK_D)
    out_D = out + (row.to(tl.int64) * NUM_HEADS + head) * HEAD_DIM + dim_D
    tl.store(out_D[None, :], out_MD.to(out.dtype.element_ty), mask=(dim_D < HEAD_DIM)[None, :])


@triton.jit
def merge_parts(
    first_part, end_part, partials, maxima, sums, num_places, place, SIZE: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Returns what is at one of `num_places` places of each part, added in the order of the parts, [1, BLOCK_D]."""
    dim_D, only_M = tl.arange(0, BLOCK_D), tl.arange(0, 1)
    is_dim_D = dim_D < SIZE
    max_M, sum_M = tl.full([1], LOWEST, tl.float32), tl.zeros([1], tl.float32)
    acc_MD = tl.zeros([1, BLOCK_D], tl.float32)
    for start in range(first_part, end_part, _MERGED_AT_A_TIME):
        for number in tl.static_range(_MERGED_AT_A_TIME):
            part_M = start + number + only_M
            is_part_M, place_M = part_M < end_part, part_M * num_places + place
            part_max_M = tl.load(maxima + place_M, mask=is_part_M, other=LOWEST)
            part_sum_M = tl.load(sums + place_M, mask=is_part_M, other=0.0)
            part_MD = tl.load(
                partials + (place_M * SIZE)[:, None] + dim_D[None, :],
                mask=is_part_M[:, None] & is_dim_D[None, :],
                other=0.0,
            )
            max_M, sum_M, acc_MD = add_split(part_max_M, part_sum_M, part_MD, max_M, sum_M, acc_MD)
    return acc_MD / sum_M[:, None]
