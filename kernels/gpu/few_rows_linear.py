"""The Triton kernel of `few_rows_linear`: a product with few tokens, and all that a layer does before and after it.

Shape legend: T tokens, I inputs, O outputs of a program, X = O / 2 pairs of outputs.

A program multiplies a tile of outputs with a part of the inputs: without parts there are too few programs to keep all
processors reading. Each writes its sums. A counter finds the last one of a tile to arrive: it adds the sums in their
order, so the result is the same bits each time, and then does the work after the product. That work takes pairs of
outputs that lie apart in the weight: a gate and its value, or the two values of a head that are rotated together. A
tile has them in rows side by side.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.arguments.few_rows import FEW_ROWS, AddTo, Best, Epilogue, Gate, PlainMatrix, RowNorm, StoreHeads
from kernels.arguments.paged_kv import MAX_CODES
from kernels.gpu.best_token import BEYOND, INF, NONE, best_of_parts
from kernels.gpu.cache_lines import LINE_BYTES, prefetch
from kernels.gpu.fusions import dependent_launch, is_fused
from kernels.gpu.key_blocks import PRECISION, scales_of
from kernels.gpu.launch_table import find_launch
from kernels.gpu.rotate_store import norm_halves, quantize_halves, rotate
from kernels.gpu.silu_mul import activate

MAX_PARTS = 16
"""The parts of the inputs that the last program of a tile adds."""

MAX_TILES = 1 << 14


def few_rows_linear(x_TI: Tensor, matrix: PlainMatrix, norm: RowNorm | None, then: Epilogue) -> Tensor:
    (num_tokens, num_inputs), num_outputs = x_TI.shape, len(matrix.weight)
    assert num_tokens <= FEW_ROWS
    assert x_TI.is_contiguous()
    assert matrix.weight.is_contiguous()
    shape = then.cache.head_dim if isinstance(then, StoreHeads) else 0, x_TI.itemsize
    launch, num_programs = find_launch("few_rows_linear", *shape), find_launch("few_rows_parts", *shape)["programs"]
    num_tiles = triton.cdiv(num_outputs, launch["BLOCK_O"])
    part_blocks = find_part_blocks(triton.cdiv(num_inputs, launch["BLOCK_I"]), num_tiles, num_programs)
    num_parts = triton.cdiv(num_inputs, part_blocks * launch["BLOCK_I"])
    assert num_tiles <= MAX_TILES
    sums = x_TI.new_empty(num_parts * num_tiles * (launch["BLOCK_O"] + 1) * launch["BLOCK_T"], dtype=torch.float32)
    out, operands, constants = _epilogue_of(x_TI, num_outputs, num_tiles, then)
    multiply_few[(num_tiles, num_parts)](
        *(x_TI, x_TI if norm is None else norm.weight, matrix.weight, x_TI if matrix.bias is None else matrix.bias),
        *(sums, make_counters(x_TI.device), out, *operands),
        *(0.0 if norm is None else norm.eps, num_tokens),
        NUM_INPUTS=num_inputs,
        NUM_OUTPUTS=num_outputs,
        NUM_PARTS=num_parts,
        PART_BLOCKS=part_blocks,
        HAS_NORM=norm is not None,
        HAS_BIAS=matrix.bias is not None,
        IS_DEPENDENT=is_fused("dependent"),
        **constants,
        **launch,
        **dependent_launch(),
    )
    return best_of_parts(out, operands[0], num_outputs) if isinstance(then, Best) else out


@cache
def make_counters(device: torch.device) -> Tensor:
    """Returns the programs that have arrived of each tile: 0 before and after each launch, which follow each other."""
    return torch.zeros(MAX_TILES, dtype=torch.int32, device=device)


def find_part_blocks(num_input_blocks: int, num_tiles: int, num_programs: int) -> int:
    """Returns the blocks of inputs of a part, so that parts times tiles are about `num_programs`."""
    num_parts = min(num_input_blocks, triton.cdiv(num_programs, num_tiles), MAX_PARTS)
    return triton.cdiv(num_input_blocks, num_parts)


def _epilogue_of(
    x_TI: Tensor, num_outputs: int, num_tiles: int, then: Epilogue
) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    """Returns the output, and the kernel's operands and constants for it; tensors that it does not read are `x_TI`."""
    num_tokens = len(x_TI)
    constants = {"THEN": "add", "NUM_KV_HEADS": 0, "QUERY_ROW": 0, "HAS_HEAD_NORM": False, "MAX_CODE": 0.0}
    unread = (*(x_TI,) * 11, 0.0)
    match then:
        case AddTo(residual_TE):
            assert residual_TE.is_contiguous()
            return residual_TE, unread, constants
        case Best():
            shape = num_tokens, num_tiles
            tokens = x_TI.new_empty(shape, dtype=torch.int32)
            return x_TI.new_empty(shape, dtype=torch.float32), (tokens, *unread[1:]), constants | {"THEN": "best"}
        case Gate(kind):
            return x_TI.new_empty(num_tokens, num_outputs // 2), unread, constants | {"THEN": kind}
        case StoreHeads(cache, tables, positions_T, slots_T, norms):
            head_dim, weights = cache.head_dim, (x_TI, x_TI) if norms is None else norms.weights[:2]
            assert head_dim == triton.next_power_of_2(head_dim) == 2 * tables.cosines.shape[1]
            own = {"NUM_KV_HEADS": cache.num_heads, "QUERY_ROW": tables.query_row, "HAS_HEAD_NORM": norms is not None}
            own |= {"THEN": "heads", "MAX_CODE": 0.0 if cache.key_scales is None else MAX_CODES[cache.keys.dtype]}
            out_THD = x_TI.new_empty(num_tokens, num_outputs // head_dim - 2 * cache.num_heads, head_dim)
            operands = x_TI, cache.keys, cache.values, *scales_of(cache), *tables[:2], positions_T, slots_T, *weights
            return out_THD, (*operands, norms.eps if norms else 0.0), own


@triton.jit(do_not_specialize=["num_tokens"])
def multiply_few(
    x,
    norm_weight,
    weight,
    bias,
    sums,
    counters,
    out,
    tokens,
    keys,
    values,
    key_scales,
    value_scales,
    cosines,
    sines,
    positions,
    slots,
    query_weight,
    key_weight,
    head_eps,
    norm_eps,
    num_tokens,
    NUM_INPUTS: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    PART_BLOCKS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    THEN: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    QUERY_ROW: tl.constexpr,
    HAS_HEAD_NORM: tl.constexpr,
    MAX_CODE: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Outputs and tokens beyond the last are computed as the last, and not stored."""
    PAIRS: tl.constexpr = BLOCK_O // 2
    tile, part = tl.program_id(0), tl.program_id(1)
    row_O, token_T = tl.arange(0, BLOCK_O), tl.arange(0, BLOCK_T)
    is_T = token_T < num_tokens
    if THEN == "add" or THEN == "best":
        real_O = tl.minimum(tile * BLOCK_O + row_O, NUM_OUTPUTS - 1)
    elif THEN == "heads":
        real_O = tile * BLOCK_O + row_O // 2 + row_O % 2 * PAIRS
    else:
        HALF: tl.constexpr = NUM_OUTPUTS // 2
        real_O = tl.minimum(tile * PAIRS + row_O // 2, HALF - 1) + row_O % 2 * HALF
    weight_O = weight + real_O.to(tl.int64) * NUM_INPUTS
    first_block = part * PART_BLOCKS
    if IS_DEPENDENT:
        # No earlier kernel writes weights: they are read into the L2 cache before the previous kernel has ended.
        LINE: tl.constexpr = LINE_BYTES * 8 // weight.dtype.element_ty.primitive_bitwidth
        for block in tl.static_range(PART_BLOCKS):
            line_I = (first_block + block) * BLOCK_I + tl.arange(0, BLOCK_I // LINE) * LINE
            prefetch(weight_O[:, None] + tl.minimum(line_I, NUM_INPUTS - 1)[None, :])
        gdc_launch_dependents()
        gdc_wait()

    sum_OT = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)
    squares_IT = tl.zeros([BLOCK_I, BLOCK_T], tl.float32)
    x_T = x + tl.minimum(token_T, num_tokens - 1) * NUM_INPUTS
    for block in range(first_block, first_block + PART_BLOCKS):
        input_I = block * BLOCK_I + tl.arange(0, BLOCK_I)
        is_I = input_I < NUM_INPUTS
        weight_OI = tl.load(weight_O[:, None] + input_I[None, :], mask=is_I[None, :], other=0.0)
        x_IT = tl.load(x_T[None, :] + input_I[:, None], mask=is_I[:, None], other=0.0)
        if HAS_NORM:
            wide_IT = x_IT.to(tl.float32)
            squares_IT += wide_IT * wide_IT
            norm_weight_I = tl.load(norm_weight + input_I, mask=is_I, other=0.0).to(tl.float32)
            x_IT = (wide_IT * norm_weight_I[:, None]).to(x_IT.dtype)
        sum_OT = tl.dot(weight_OI, x_IT, sum_OT, input_precision=PRECISION)
    squares_T = tl.sum(squares_IT, 0)

    if NUM_PARTS > 1:
        num_tiles = tl.num_programs(0)
        cell_OT = row_O[:, None] * BLOCK_T + token_T[None, :]
        squares = sums + NUM_PARTS * num_tiles * BLOCK_O * BLOCK_T
        place = part * num_tiles + tile
        tl.store(sums + place * BLOCK_O * BLOCK_T + cell_OT, sum_OT)
        if HAS_NORM:
            tl.store(squares + place * BLOCK_T + token_T, squares_T)
        # The barrier orders this program's stores before its release; the last one to count has acquired the others'.
        tl.debug_barrier()
        if tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu") < NUM_PARTS - 1:
            return
        tl.store(counters + tile, 0)  # ready for the next launch
        sum_OT = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)
        squares_T = tl.zeros([BLOCK_T], tl.float32)
        for other in tl.static_range(NUM_PARTS):
            # Bypasses the L1 cache, which other processors' stores do not reach.
            place = other * num_tiles + tile
            sum_OT += tl.load(sums + place * BLOCK_O * BLOCK_T + cell_OT, cache_modifier=".cg")
            if HAS_NORM:
                squares_T += tl.load(squares + place * BLOCK_T + token_T, cache_modifier=".cg")

    if HAS_NORM:
        sum_OT *= tl.rsqrt(squares_T / NUM_INPUTS + norm_eps)[None, :]
    if HAS_BIAS:
        sum_OT += tl.load(bias + real_O).to(tl.float32)[:, None]
    out_OT = sum_OT.to(x.dtype.element_ty)
    if THEN == "add":
        output_O = tile * BLOCK_O + row_O
        place_OT = out + token_T[None, :] * NUM_OUTPUTS + output_O[:, None]
        mask_OT = (output_O < NUM_OUTPUTS)[:, None] & is_T[None, :]
        old_OT = tl.load(place_OT, mask=mask_OT, other=0.0).to(tl.float32)
        tl.store(place_OT, (old_OT + out_OT.to(tl.float32)).to(out_OT.dtype), mask=mask_OT)
    elif THEN == "best":
        logit_OT = out_OT.to(tl.float32)
        best_T = tl.max(logit_OT, 0)
        first_T = tl.min(tl.where(logit_OT == best_T[None, :], real_O[:, None], BEYOND), 0)
        is_refused_T = tl.max((~(tl.abs(logit_OT) < INF)).to(tl.int32), 0) > 0  # comparisons with NaN are false
        place_T = token_T * tl.num_programs(0) + tile
        tl.store(out + place_T, best_T, mask=is_T)
        tl.store(tokens + place_T, tl.where(is_refused_T, NONE, first_T), mask=is_T)
    else:
        half_1, half_2 = tl.split(tl.permute(tl.reshape(out_OT, [PAIRS, 2, BLOCK_T]), [2, 0, 1]))
        pair_X = tl.arange(0, PAIRS)
        if THEN == "heads":
            operands = keys, values, key_scales, value_scales, cosines, sines, positions, slots
            _store_head(
                *(half_1, half_2, tile, token_T, is_T, out),
                *operands,
                *(query_weight, key_weight, head_eps),
                *(NUM_OUTPUTS // BLOCK_O - 2 * NUM_KV_HEADS, NUM_KV_HEADS, QUERY_ROW, HAS_HEAD_NORM, MAX_CODE),
            )
        else:
            activated = activate(half_1.to(tl.float32), THEN).to(out_OT.dtype).to(tl.float32)
            pair_X += tile * PAIRS
            mask_TX = is_T[:, None] & (pair_X < NUM_OUTPUTS // 2)[None, :]
            place_TX = out + token_T[:, None] * (NUM_OUTPUTS // 2) + pair_X[None, :]
            tl.store(place_TX, (activated * half_2.to(tl.float32)).to(out_OT.dtype), mask=mask_TX)


@triton.jit
def _store_head(
    half_1,
    half_2,
    head,
    token_T,
    is_T,
    out,
    keys,
    values,
    key_scales,
    value_scales,
    cosines,
    sines,
    positions,
    slots,
    query_weight,
    key_weight,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    QUERY_ROW: tl.constexpr,
    HAS_NORM: tl.constexpr,
    MAX_CODE: tl.constexpr,
):
    """Does what `rotate_store` does, with one head of all tokens: the first of its halves is [T, X]."""
    X: tl.constexpr = half_1.shape[1]
    pair_X = tl.arange(0, X)
    is_query, has_angle = head < NUM_HEADS, head < NUM_HEADS + NUM_KV_HEADS
    if has_angle:
        if HAS_NORM:
            weight = key_weight
            if is_query:
                weight = query_weight
            half_1, half_2 = norm_halves(half_1, half_2, weight, eps, 2 * X, X, X)
        row_T = tl.load(positions + token_T, mask=is_T, other=0).to(tl.int64) + tl.where(is_query, QUERY_ROW, 0)
        angle_TX = row_T[:, None] * X + pair_X[None, :]
        half_1, half_2 = rotate(half_1, half_2, tl.load(cosines + angle_TX), tl.load(sines + angle_TX))
    if is_query:
        place_TX = out + (token_T[:, None] * NUM_HEADS + head) * (2 * X) + pair_X[None, :]
        tl.store(place_TX, half_1, mask=is_T[:, None])
        tl.store(place_TX + X, half_2, mask=is_T[:, None])
    else:
        slot_T = tl.load(slots + token_T, mask=is_T, other=-1)
        kv_head = (head - NUM_HEADS) % NUM_KV_HEADS
        target, scales = values, value_scales
        if has_angle:
            target, scales = keys, key_scales
        stored_1, stored_2 = half_1, half_2
        head_T = slot_T * NUM_KV_HEADS + kv_head
        if MAX_CODE > 0:
            stored_1, stored_2, scale_T = quantize_halves(half_1, half_2, MAX_CODE)
            tl.store(scales + head_T, scale_T, mask=slot_T >= 0)
        target_TX = target + head_T[:, None] * (2 * X) + pair_X[None, :]
        tl.store(target_TX, stored_1.to(keys.dtype.element_ty), mask=(slot_T >= 0)[:, None])
        tl.store(target_TX + X, stored_2.to(keys.dtype.element_ty), mask=(slot_T >= 0)[:, None])
