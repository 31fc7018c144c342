"""Attention by the Triton kernels, with the work planned as the server plans it."""

import numpy as np
import torch
from torch import Tensor

from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import PrefillRows
from kernels.gpu.launch_table import count_tile_tokens
from kernels.operations.paged_decode import paged_decode
from kernels.operations.paged_prefill import paged_prefill
from kernels.plans.decode_work import UNCOMPILED, DecodeLayout, DecodeWork, make_decode_scratch, plan_decode_work
from kernels.plans.prefill_tiles import TILE_WORDS, max_prefill_tiles, plan_prefill_tiles

UNSET = np.iinfo(np.int32).max


def plan_work(query: Tensor, cache: PagedKV, page_tables: Tensor, num_keys: Tensor, layout: DecodeLayout) -> DecodeWork:
    words = np.full(layout.num_words, UNSET, np.int32)
    tables = page_tables[: len(num_keys)].cpu().numpy()
    plan_decode_work(layout, num_keys.cpu().numpy(), tables, cache.page_size, words)
    scratch = make_decode_scratch(layout, query.shape[2], query.device)
    return DecodeWork(layout, torch.from_numpy(words).to(query.device), scratch)


def decode(query: Tensor, cache: PagedKV, page_tables: Tensor, num_keys: Tensor, scale: float, out: Tensor) -> None:
    layout = DecodeLayout(*query.shape[:2], cache.num_heads, UNCOMPILED, shares_prefixes=False)
    work = plan_work(query, cache, page_tables, num_keys, layout)
    paged_decode(query, cache, page_tables, num_keys, scale, out, work)


def plan_tiles(query: Tensor, cache: PagedKV, rows: PrefillRows, max_tokens: int, max_rows: int) -> Tensor:
    tile_tokens = count_tile_tokens(query.shape[1] // cache.num_heads, query.shape[2], query.dtype.itemsize)
    tiles = np.full((max_prefill_tiles(max_tokens, max_rows, tile_tokens), TILE_WORDS), UNSET, np.int32)
    plan_prefill_tiles(rows.query_lens.cpu().numpy(), rows.context_lens.cpu().numpy(), tiles, tile_tokens)
    return torch.from_numpy(tiles).to(query.device)


def prefill(query: Tensor, cache: PagedKV, rows: PrefillRows, scale: float, out: Tensor) -> None:
    tiles = plan_tiles(query, cache, rows, len(query), len(rows.query_lens))
    paged_prefill(query, cache, PrefillRows(rows.page_tables, rows.query_lens, rows.context_lens, tiles), scale, out)
