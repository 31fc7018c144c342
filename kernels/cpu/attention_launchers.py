"""Calls of the C kernels of attention, as `launchers.py` has those of other operations."""

from typing import Any

import torch
from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import PrefillRows, WholeRows
from kernels.cpu.addresses import address_of
from kernels.cpu.arguments import ALL_KEYS
from kernels.cpu.library import MAX_HEAD_DIM, MAX_QUERIES_A_HEAD, Kernel


def paged_decode(
    kernel: Kernel,
    query_RHD: Tensor,
    cache: PagedKV,
    page_tables_RP: Tensor,
    num_keys_R: Tensor,
    options: AttentionOptions,
    out_RHD: Tensor,
    *_work: Any,
) -> Any:
    return _attend(kernel, query_RHD, cache, page_tables_RP, options, out_RHD, num_keys=address_of(num_keys_R))


def paged_prefill(
    kernel: Kernel, query_THD: Tensor, cache: PagedKV, rows: PrefillRows, options: AttentionOptions, out_THD: Tensor
) -> Any:
    lens = {"query_lens": address_of(rows.query_lens), "context_lens": address_of(rows.context_lens)}
    lens["last_keys"] = address_of(rows.last_keys)
    return _attend(kernel, query_THD, cache, rows.page_tables, options, out_THD, **lens)


def _attend(
    kernel: Kernel,
    query_THD: Tensor,
    cache: PagedKV,
    page_tables_RP: Tensor,
    options: AttentionOptions,
    out_THD: Tensor,
    **lens: int | None,
) -> Any:
    queries_a_head = query_THD.shape[1] // cache.num_heads
    if not has_kernel(cache, query_THD.dtype) or cache.head_dim > MAX_HEAD_DIM or queries_a_head > MAX_QUERIES_A_HEAD:
        return NotImplemented
    assert query_THD.stride()[1:] == (cache.head_dim, 1)
    arguments = kernel.arguments(
        query=query_THD.data_ptr(),
        query_stride=query_THD.stride(0),
        **cache.c_arguments,
        page_tables=page_tables_RP.data_ptr(),
        table_stride=page_tables_RP.stride(0),
        out=address_of(out_THD),
        num_rows=len(page_tables_RP),
        num_heads=cache.num_heads,
        queries_a_head=queries_a_head,
        head_dim=cache.head_dim,
        page_size=cache.page_size,
        scale=options.scale,
        window=options.window or ALL_KEYS,
        softcap=options.softcap or 0.0,
        sinks=address_of(options.sinks),
        **lens,
    )
    return kernel.run(arguments)


def encoder_attention(
    kernel: Kernel,
    query_THD: Tensor,
    key_TGD: Tensor,
    value_TGD: Tensor,
    rows: WholeRows,
    options: AttentionOptions,
    out_THD: Tensor,
) -> Any:
    (num_single, query_lens_C), bias_HX = rows, options.biases
    (_, num_kv_heads, head_dim), queries_a_head = key_TGD.shape, query_THD.shape[1] // key_TGD.shape[1]
    is_large = head_dim > MAX_HEAD_DIM or queries_a_head > MAX_QUERIES_A_HEAD
    if is_large or key_TGD.stride(0) != value_TGD.stride(0):
        return NotImplemented
    if num_single:
        out_THD[:num_single] = value_TGD[:num_single].repeat_interleave(queries_a_head, 1)
    arguments = kernel.arguments(
        query=query_THD[num_single:].data_ptr(),
        query_stride=query_THD.stride(0),
        keys=key_TGD[num_single:].data_ptr(),
        values=value_TGD[num_single:].data_ptr(),
        table_stride=key_TGD.stride(0),
        query_lens=address_of(query_lens_C),
        out=out_THD[num_single:].data_ptr(),
        num_rows=len(query_lens_C),
        num_heads=num_kv_heads,
        queries_a_head=queries_a_head,
        head_dim=head_dim,
        scale=options.scale,
        window=options.window or ALL_KEYS,
        biases=address_of(bias_HX),
        bias_reach=0 if bias_HX is None else bias_HX.shape[1] // 2,
    )
    return kernel.run(arguments)


def has_kernel(cache: PagedKV, dtype: torch.dtype) -> bool:
    return cache.keys.dtype in (dtype, torch.int8) or (cache.keys.dtype, dtype) == (torch.float16, torch.float32)
