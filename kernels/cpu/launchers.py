"""Calls of the C kernels with the arguments of their operations (`kernels/operations`).

A launcher returns `NotImplemented` for shapes and formats that its kernel does not take; the reference computes those.
Shape legends are those of the operations.
"""

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels.arguments.lora_slots import LoraSlots, TokenAdapters
from kernels.arguments.packed_blocks import PackedBlocks
from kernels.arguments.packed_forms import BLOCK, FORMS
from kernels.arguments.packed_fp8 import PackedFp8
from kernels.arguments.paged_kv import InPlace, PagedKV
from kernels.arguments.routes import Routes
from kernels.arguments.routing import MAX_EXPERTS, Routing
from kernels.arguments.rows import HeadNorms, RopeTables
from kernels.cpu import attention_launchers, latent_launchers, state_launchers
from kernels.cpu.addresses import address_of, addresses_of
from kernels.cpu.arguments import STRUCTURES
from kernels.cpu.attention_launchers import has_kernel
from kernels.cpu.huge_pages import empty_huge
from kernels.cpu.library import Kernel, find_kernel

GELUS: dict[str | None, int] = {None: 0, "tanh": 1, "exact": 2}
"""The kinds of GELU in C."""


def find_launcher(name: str, dtype: torch.dtype) -> Callable[..., Any] | None:
    """Returns the launcher of an operation, or `None` if no C kernel of it is loaded for this dtype."""
    kernel = find_kernel(name, dtype)
    return None if kernel is None else partial(LAUNCHERS[name], kernel)


def _output(out: Tensor | None, num_rows: int, size: int, dtype: torch.dtype) -> Tensor:
    out = torch.empty(num_rows, size, dtype=dtype) if out is None else out
    assert out.shape == (num_rows, size)
    return out


def embed(
    kernel: Kernel,
    token_ids_T: Tensor,
    positions_T: Tensor,
    table: Tensor,
    is_packed: bool,
    position_table_ME: Tensor | None,
    out_TE: Tensor | None,
) -> Tensor:
    num_tokens, size = len(token_ids_T), table.shape[1] * table.shape[3] if is_packed else table.shape[1]
    out_TE = _output(out_TE, num_tokens, size, table.dtype)
    addresses = addresses_of(token_ids_T, positions_T, table, position_table_ME, out_TE)
    kernel.run(kernel.arguments(*addresses, num_tokens, size, is_packed))
    return out_TE


def layer_norm(
    kernel: Kernel,
    x_TE: Tensor,
    weight_E: Tensor,
    bias_E: Tensor,
    eps: float,
    update_TE: Tensor | None,
    out_TE: Tensor | None,
) -> Tensor:
    out_TE = torch.empty_like(x_TE) if out_TE is None else out_TE
    addresses = addresses_of(x_TE, update_TE, weight_E, bias_E, out_TE)
    kernel.run(kernel.arguments(*addresses, *x_TE.shape, x_TE.shape[1], eps))
    return out_TE


def rms_norm(
    kernel: Kernel, x_TE: Tensor, weight_E: Tensor, eps: float, update_TE: Tensor | None, out_TE: Tensor | None
) -> Tensor:
    out_TE = torch.empty_like(x_TE) if out_TE is None else out_TE
    assert x_TE.stride(1) == out_TE.stride(1) == 1
    assert x_TE.stride(0) == out_TE.stride(0) or len(x_TE) < 2
    addresses = x_TE.data_ptr(), *addresses_of(update_TE, weight_E), None, out_TE.data_ptr()
    kernel.run(kernel.arguments(*addresses, *x_TE.shape, x_TE.stride(0), eps))
    return out_TE


def gate_mul(kernel: Kernel, gate_up_TF2: Tensor, *rest: Any) -> Tensor:
    """`silu_mul`, and `swiglu_oai` with its numbers."""
    *numbers, out = rest
    num_tokens, size = gate_up_TF2.shape[0], gate_up_TF2.shape[1] // 2
    out_TF = _output(out, num_tokens, size, gate_up_TF2.dtype)
    kernel.run(kernel.arguments(address_of(gate_up_TF2), None, address_of(out_TF), num_tokens, size, 0, 0, *numbers))
    return out_TF


def gelu_mul(kernel: Kernel, gate_up: Tensor, out_TF: Tensor | None, up_TF: Tensor | None, kind: str) -> Tensor:
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // (2 if up_TF is None else 1)
    out_TF = _output(out_TF, num_tokens, size, gate_up.dtype)
    up, stride = (None, 0) if up_TF is None else (up_TF.data_ptr(), up_TF.stride(0))
    addresses = address_of(gate_up), up, address_of(out_TF)
    kernel.run(kernel.arguments(*addresses, num_tokens, size, stride, kind == "exact"))
    return out_TF


def relu_squared(kernel: Kernel, x_TF: Tensor) -> Tensor:
    num_tokens, size = x_TF.shape
    kernel.run(kernel.arguments(out=address_of(x_TF), num_tokens=num_tokens, size=size))
    return x_TF


def rescale(kernel: Kernel, x_TE: Tensor, factor: float, added_TE: Tensor | None, softcap: float) -> Tensor:
    kernel.run(kernel.arguments(*addresses_of(x_TE, added_TE), *x_TE.shape, factor, softcap))
    return x_TE


def gelu(kernel: Kernel, x_TF: Tensor, kind: str) -> Tensor:
    out_TF = torch.empty_like(x_TF)
    kernel.run(kernel.arguments(address_of(x_TF), None, address_of(out_TF), *x_TF.shape, 0, kind == "exact"))
    return out_TF


def rotate_store(
    kernel: Kernel,
    heads_TAD: Tensor,
    cache: PagedKV | InPlace | None,
    tables: RopeTables | None,
    positions_T: Tensor,
    slots_T: Tensor,
    norms: HeadNorms | None,
) -> Tensor:
    stored = cache if isinstance(cache, PagedKV) else None
    if stored is not None and not has_kernel(stored, heads_TAD.dtype):
        return NotImplemented
    num_kv_heads = 0 if cache is None else cache.num_heads
    num_heads = heads_TAD.shape[1] - 2 * num_kv_heads
    cos_MX, sin_MX, query_row = tables or (None, None, 0)
    query_weight, key_weight, value_weight = [None] * 3 if norms is None else addresses_of(*norms.weights)
    arguments = kernel.arguments(
        heads=address_of(heads_TAD),
        cosines=address_of(cos_MX),
        sines=address_of(sin_MX),
        positions=address_of(positions_T),
        slots=address_of(slots_T),
        **({} if stored is None else stored.c_arguments),
        query_weight=query_weight,
        key_weight=key_weight,
        value_weight=value_weight,
        num_tokens=len(heads_TAD),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=heads_TAD.shape[2],
        half=0 if cos_MX is None else cos_MX.shape[1],
        query_row=query_row,
        eps=0.0 if norms is None else norms.eps,
    )
    kernel.run(arguments)
    return heads_TAD[:, :num_heads]


def pack_linear(kernel: Kernel, packed: Tensor, first_output: int, rows_OI: Tensor) -> None:
    is_transposed = rows_OI.T.is_contiguous()
    rows_OI = rows_OI if is_transposed else rows_OI.contiguous()
    kernel.run(kernel.arguments(rows_OI.data_ptr(), packed.data_ptr(), first_output, *rows_OI.shape, is_transposed))


def packed_linear(
    kernel: Kernel, x_TI: Tensor, packed: Tensor, bias_O: Tensor | None, num_outputs: int, *rest: Any
) -> Tensor:
    return _linear(kernel, (x_TI, packed, bias_O), (num_outputs, 0), *rest)


def _linear(
    kernel: Kernel,
    inputs: Sequence[Tensor | None],
    sizes: tuple[int, int],
    activation: str | None,
    out: Tensor | None,
) -> Tensor:
    """Calls a kernel with x [T, I], weight and bias, the number of outputs and the inputs of a scale."""
    x_TI = inputs[0]
    assert x_TI is not None
    out_TO = _output(out, len(x_TI), sizes[0], x_TI.dtype)
    kernel.run(kernel.arguments(*addresses_of(*inputs, out_TO), *x_TI.shape, *sizes, GELUS[activation]))
    return out_TO


def fp8_linear(kernel: Kernel, x_TI: Tensor, weight: PackedFp8, bias_O: Tensor | None, *rest: Any) -> Tensor:
    return _linear(kernel, (x_TI, weight.stored, bias_O), (weight.num_outputs, weight.chunk_inputs), *rest)


def quantize(kernel: Kernel, weight_OI: Tensor, bits: int, largest_O: Tensor | None) -> Tensor:
    num_outputs, num_inputs = weight_OI.shape
    form = FORMS[f"int{bits}"].of_row(num_inputs)
    packed = empty_huge((-(-num_outputs // BLOCK), form.num_units(num_inputs), form.unit_bytes), torch.uint8)
    kernel.run(kernel.arguments(*addresses_of(weight_OI, largest_O, packed), num_outputs, num_inputs, bits))
    return packed


def sum_magnitudes(kernel: Kernel, x_TI: Tensor) -> Tensor:
    sum_T = torch.empty(len(x_TI), dtype=torch.float32)
    kernel.run(kernel.arguments(*addresses_of(x_TI, sum_T), *x_TI.shape))
    return sum_T


def block_linear(
    kernel: Kernel,
    x_TI: Tensor,
    weight: PackedBlocks,
    bias_O: Tensor | None,
    activation: str | None,
    *rest: Tensor | None,
) -> Tensor:
    out_TO, mean_T = rest
    out_TO = _output(out_TO, len(x_TI), weight.num_outputs, x_TI.dtype)
    addresses = *addresses_of(x_TI, weight.stored), ctypes.addressof(weight.description)
    sizes = len(weight.segments), *x_TI.shape, GELUS[activation]
    kernel.run(kernel.arguments(*addresses, *addresses_of(bias_O, mean_T, out_TO), *sizes))
    return out_TO


def lora_linear(kernel: Kernel, x_TI: Tensor, lora: LoraSlots, adapters: TokenAdapters, out_TO: Tensor) -> None:
    addresses = addresses_of(x_TI, lora.a, lora.b, lora.ranks, lora.scales, lora.ends, adapters.slots, out_TO)
    num_slots, num_segments, max_rank, _ = lora.a.shape
    sizes = *x_TI.shape, out_TO.shape[1], num_segments, max_rank, num_slots
    kernel.run(kernel.arguments(*addresses, *sizes))


def look_up_blocks(kernel: Kernel, weight: PackedBlocks, row_T: Tensor, out_TI: Tensor) -> Tensor:
    row_T = row_T if row_T.dtype == torch.int32 else row_T.int()  # the latter cannot be captured
    addresses = address_of(weight.stored), ctypes.addressof(weight.description), *addresses_of(row_T, out_TI)
    kernel.run(kernel.arguments(*addresses, len(weight.segments), *out_TI.shape))
    return out_TI


def pack_blocks(kernel: Kernel, weight: PackedBlocks, segment: int, first_row: int, rows: Tensor) -> None:
    addresses = address_of(weight.stored), ctypes.addressof(weight.description), address_of(rows)
    kernel.run(kernel.arguments(*addresses, segment, first_row, len(rows), weight.num_inputs, rows.shape[1]))


def route_tokens(
    kernel: Kernel, logits_TX: Tensor, routing: Routing, bias_X: Tensor | None, scales_X: Tensor | None, routes: Routes
) -> None:
    num_tokens, num_experts = logits_TX.shape
    assert num_experts <= MAX_EXPERTS
    arguments = kernel.arguments(
        logits=address_of(logits_TX),
        bias=address_of(bias_X),
        scales=address_of(scales_X),
        shares=address_of(routes.shares),
        rows=address_of(routes.rows),
        tokens=address_of(routes.tokens),
        ends=address_of(routes.ends),
        num_tokens=num_tokens,
        num_experts=num_experts,
        num_chosen=routing.num_chosen,
        num_groups=routing.num_groups,
        num_chosen_groups=routing.num_chosen_groups,
        num_best_of_group=routing.num_best_of_group,
        is_sigmoid=routing.score == "sigmoid",
        is_renormalized=routing.is_renormalized,
        scale=routing.scale,
    )
    kernel.run(arguments)


def gather_rows(kernel: Kernel, x_TE: Tensor, routes: Routes, out_RE: Tensor | None) -> Tensor:
    num_rows, size = len(routes.tokens), x_TE.shape[1]
    out_RE = _output(out_RE, num_rows, size, x_TE.dtype)
    x, rows, out = addresses_of(x_TE, routes.tokens, out_RE)
    kernel.run(kernel.arguments(x=x, rows=rows, out=out, num_rows=num_rows, size=size))
    return out_RE


def combine_experts(
    kernel: Kernel, x_RE: Tensor, routes: Routes, shared_TE: Tensor | None, gate_T1: Tensor | None, out: Tensor | None
) -> Tensor:
    out = _output(out, len(routes.rows), x_RE.shape[1], x_RE.dtype)
    addresses = addresses_of(x_RE, routes.rows, routes.shares, shared_TE, gate_T1, out)
    kernel.run(kernel.arguments(*addresses, *routes.rows.shape, x_RE.shape[1]))
    return out


def expert_packed_linear(kernel: Kernel, packed: Tensor, *rest: Any) -> Tensor:
    return _expert_linear(kernel, (packed.data_ptr(), None), BLOCK * len(packed), *rest)


def expert_block_linear(kernel: Kernel, weight: PackedBlocks, *rest: Any) -> Tensor:
    assert len(weight.segments) == 1
    addresses = weight.stored.data_ptr(), ctypes.addressof(weight.description)
    return _expert_linear(kernel, addresses, weight.num_outputs, *rest)


def _expert_linear(
    kernel: Kernel, weight: Sequence[int | None], num_outputs: int, bias_O: Tensor | None, x_RI: Tensor, *rest: Any
) -> Tensor:
    """Calls a kernel for a weight, given by its address and that of its segment, of all experts' outputs."""
    routes, out, mean_R = rest
    num_experts = len(routes.ends)
    out_RO = _output(out, len(x_RI), num_outputs // num_experts, x_RI.dtype)
    addresses = address_of(x_RI), *weight, *addresses_of(bias_O, routes.ends, out_RO, mean_R)
    kernel.run(kernel.arguments(*addresses, num_experts, x_RI.shape[1], out_RO.shape[1]))
    return out_RO


def choose_tokens(kernel: Kernel, logits_SV: Tensor, *columns_S: Tensor) -> Tensor:
    """`greedy`, `sample` with seeds and positions, and `draw` with temperatures before them."""
    tokens_S = torch.empty(len(logits_SV), dtype=torch.int64)
    inputs = [tensor.contiguous() for tensor in (logits_SV, *columns_S)]
    logits, *columns = addresses_of(*inputs)
    columns = [None] * (3 - len(columns)) + columns
    kernel.run(kernel.arguments(logits, *columns, address_of(tokens_S), *logits_SV.shape))
    return tokens_S


def apply_bitmask(kernel: Kernel, logits_SV: Tensor, rows_A: Tensor, bitmask_AW: Tensor) -> None:
    kernel.run(kernel.arguments(*addresses_of(logits_SV, rows_A, bitmask_AW), len(rows_A), logits_SV.shape[1]))


LAUNCHERS: dict[str, Callable[..., Any]] = {
    name: launcher
    for names in map(vars, (attention_launchers, latent_launchers, state_launchers, sys.modules[__name__]))
    for name, launcher in names.items()
    if name in STRUCTURES
}
LAUNCHERS |= dict.fromkeys(("greedy", "sample", "draw"), choose_tokens)
LAUNCHERS["rounded_linear"] = packed_linear
LAUNCHERS |= dict.fromkeys(("silu_mul", "swiglu_oai"), gate_mul)
"""By operation."""
