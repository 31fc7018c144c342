"""Paged attention: decode next to the device's bandwidth, prefill next to its rate of bfloat16 products.

SDPA is torch's attention over dense K and V, with equally long rows: no pages, no lengths. In decode, "Triton" is the
form in use. With it are measured the other form of merging (one kernel or two) and, if rows share a prefix, the form
that reads the prefix once per row. Bytes count each row's K and V, so a form that reads a shared prefix once can exceed
the bandwidth.
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

from benchmarks.kernels.cases import Case, MadeCase, make_case
from benchmarks.kernels.measure import Benchmark, Findings, Form, Work, forms_of, median_ms, of_operation
from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.rows import PrefillRows
from kernels.dispatch import count_programs
from kernels.gpu.launch_table import count_tile_tokens, find_launch
from kernels.gpu.triton_kernels import find_triton_kernel
from kernels.operations.paged_decode import paged_decode, paged_decode_reference
from kernels.operations.paged_prefill import paged_prefill, paged_prefill_reference
from kernels.plans.decode_work import (
    DecodeLayout,
    DecodeShape,
    DecodeWork,
    launch_shape_of,
    make_decode_scratch,
    plan_decode_work,
)
from kernels.plans.prefill_tiles import TILE_WORDS, max_prefill_tiles, plan_prefill_tiles

DECODE_CASES = {
    "GPT-2 124M, 1 x 160": Case(12, 12, 64, 1, 1, 159),
    "GPT-2 124M, 1 x 1000": Case(12, 12, 64, 1, 1, 999),
    "GPT-2 124M, 32 x 200": Case(12, 12, 64, 32, 1, 199),
    "GPT-2 124M, 8 x 800": Case(12, 12, 64, 8, 1, 799),
    "GPT-2 124M, 8 x 800, 768 shared": Case(12, 12, 64, 8, 1, 799, 768),
    "Llama 135M, 32 x 200": Case(9, 3, 64, 32, 1, 199),
    "Llama 135M, 8 x 800, 768 shared": Case(9, 3, 64, 8, 1, 799, 768),
    "Qwen3-0.6B, 8 x 512": Case(16, 8, 128, 8, 1, 511),
    "Qwen3-0.6B, 8 x 800, 768 shared": Case(16, 8, 128, 8, 1, 799, 768),
}
GPU_DECODE_CASES = {
    f"{model}, {num_rows} x {context}": Case(num_heads, 8, 128, num_rows, 1, context - 1)
    for model, num_heads in (("Qwen3-0.6B", 16), ("Llama-3-8B", 32), ("Qwen3-14B", 40))
    for num_rows, context in ((1, 512), (1, 8192), (64, 512), (256, 512), (256, 1024), (64, 8192))
} | {
    f"{model}, 64 x 1100, 1000 shared": Case(num_heads, 8, 128, 64, 1, 1099, 1000)
    for model, num_heads in (("Qwen3-0.6B", 16), ("Llama-3-8B", 32), ("Qwen3-14B", 40))
}


def make_decode(case: Case, device: torch.device) -> Work:
    made = make_case(case, device)
    num_keys = torch.full((case.num_rows,), case.num_before + 1, dtype=torch.int32, device=device)
    arguments = (made.query, made.cache, made.page_tables, num_keys, AttentionOptions(case.head_dim**-0.5), made.out)
    keys, values = made.dense_heads()
    keys, values = keys[:, :, : case.num_before + 1], values[:, :, : case.num_before + 1]
    query = made.query[:, :, None]

    def launch(shares_prefixes: bool, merges_in_kernel: bool) -> Form:
        work = plan_work(case, made, shares_prefixes, merges_in_kernel)
        return lambda: paged_decode(*arguments, work)

    others: dict[str, Form] = {
        "torch": lambda: paged_decode_reference(*arguments),
        "SDPA": lambda: functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True),
    }
    launch_shape = launch_shape_of(
        case.num_heads // case.num_kv_heads, case.head_dim, made.query.dtype, made.cache.keys.dtype
    )
    merges = bool(find_launch("decode_work", *launch_shape)["merges"])
    if find_triton_kernel("paged_decode") is not None:
        others["two kernels" if merges else "one kernel"] = launch(True, not merges)
        if case.num_shared:
            others["not shared"] = launch(False, merges)
    num_bytes = 2 * case.num_rows * (case.num_before + 1) * case.num_kv_heads * case.head_dim * 2
    return Work(forms_of("paged_decode", made.query, launch(True, merges), others), num_bytes)


def plan_work(case: Case, made: MadeCase, shares_prefixes: bool, merges_in_kernel: bool) -> DecodeWork:
    device = made.query.device
    shape = DecodeShape(case.num_heads, case.num_kv_heads, case.head_dim, made.cache.page_size, made.query.dtype)
    programs = count_programs(shape, device)
    layout = DecodeLayout(case.num_rows, case.num_heads, case.num_kv_heads, programs, shares_prefixes, merges_in_kernel)
    num_keys = np.full(case.num_rows, case.num_before + 1, np.int32)
    plan = torch.zeros(layout.num_words, dtype=torch.int32)
    plan_decode_work(layout, num_keys, made.page_tables.cpu().numpy(), made.cache.page_size, plan.numpy())
    return DecodeWork(layout, plan.to(device), make_decode_scratch(layout, case.head_dim, device))


PREFILL_CASES = {
    "GPT-2 124M, 512 new": Case(12, 12, 64, 1, 512, 0),
    "GPT-2 124M, 388 after 512": Case(12, 12, 64, 1, 388, 512),
    "GPT-2 124M, 8 x 32 after 768": Case(12, 12, 64, 8, 32, 768),
    "Llama 135M, 388 after 512": Case(9, 3, 64, 1, 388, 512),
    "Qwen3-0.6B, 388 after 512": Case(16, 8, 128, 1, 388, 512),
}
GPU_PREFILL_CASES = {
    f"{model}, {num_rows} x {num_new} after {num_before}": Case(num_heads, 8, 128, num_rows, num_new, num_before)
    for model, num_heads in (("Qwen3-0.6B", 16), ("Llama-3-8B", 32), ("Qwen3-14B", 40))
    for num_rows, num_new, num_before in ((1, 128, 0), (16, 512, 0), (1, 8192, 0), (1, 2048, 6144))
}


def make_prefill(case: Case, device: torch.device) -> Work:
    made = make_case(case, device)
    lens = torch.full((2, case.num_rows), case.num_new, dtype=torch.int32)
    lens[1] = case.num_before
    heads = case.num_heads // case.num_kv_heads, case.head_dim
    tile_tokens = count_tile_tokens(*launch_shape_of(*heads, made.query.dtype, made.cache.keys.dtype))
    tiles = torch.empty(max_prefill_tiles(len(made.query), case.num_rows, tile_tokens), TILE_WORDS, dtype=torch.int32)
    plan_prefill_tiles(lens[0].numpy(), lens[1].numpy(), tiles.numpy(), tile_tokens)
    lens = lens.to(device)
    rows = PrefillRows(made.page_tables, lens[0], lens[1], tiles.to(device))
    arguments = (made.query, made.cache, rows, AttentionOptions(case.head_dim**-0.5), made.out)
    others: dict[str, Form] = {"torch": lambda: paged_prefill_reference(*arguments)}
    if not case.num_before:
        keys, values = (heads[:, :, : case.num_new] for heads in made.dense_heads())
        query = made.query.view(case.num_rows, case.num_new, case.num_heads, case.head_dim).transpose(1, 2)
        others["SDPA"] = lambda: functional.scaled_dot_product_attention(
            query, keys, values, is_causal=True, enable_gqa=True
        )
    num_scores = case.num_rows * sum(case.num_before + token + 1 for token in range(case.num_new))
    num_operations = 4 * num_scores * case.num_heads * case.head_dim
    num_bytes = (
        2 * made.query.nbytes
        + 2 * made.page_tables.numel() * made.cache.page_size * case.num_kv_heads * case.head_dim * 2
    )
    forms = forms_of("paged_prefill", made.query, lambda: paged_prefill(*arguments), others)
    return Work(forms, num_bytes, num_operations)


PAGE_SIZE, NUM_PROGRAMS = 16, 528
MAX_PAGES = 256
"""Width of a page table, whatever the rows hold."""

PLAN_CASES = {
    "1 row of 500": (1, 500, 0, 1),
    "256 rows of 600": (256, 600, 0, 1),
    "256 rows of 2000": (256, 2000, 0, 1),
    "256 of 600, 400 shared": (256, 600, 400, 1),
    "256 of 2000, 1600 by 8s": (256, 2000, 1600, 32),
    "256 of 2000, 1600 by 2s": (256, 2000, 1600, 128),
}
"""Rows, mean length, tokens shared within a group, number of groups."""


def make_plan(num_rows: int, mean: int, num_shared: int, num_groups: int) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    num_keys = rng.integers(max(num_shared + 1, mean // 2), mean * 3 // 2 + 1, num_rows, dtype=np.int32)
    tables = rng.permutation(num_rows * MAX_PAGES).astype(np.int32).reshape(num_rows, MAX_PAGES)
    tables[:, : num_shared // PAGE_SIZE] = tables[np.arange(num_rows) % num_groups, : num_shared // PAGE_SIZE]
    tables[np.arange(MAX_PAGES) * PAGE_SIZE >= num_keys[:, None]] = -1
    layout = DecodeLayout(num_rows, 16, 8, NUM_PROGRAMS, shares_prefixes=True)
    plan = np.zeros(layout.num_words, np.int32)
    return lambda: plan_decode_work(layout, num_keys, tables, PAGE_SIZE, plan)


def measure_plans(options: argparse.Namespace) -> Findings:
    cases = list(PLAN_CASES.items())[: 1 if options.quick else None]
    plans = {name: make_plan(*case) for name, case in cases}
    return [{"case": name, "ms": ms} for name, ms in median_ms(plans, options.rounds).items()], {}


BENCHMARKS = {
    "paged_decode": of_operation("decode", {"cpu": DECODE_CASES, "cuda": GPU_DECODE_CASES}, make_decode),
    "paged_prefill": of_operation("prefill", {"cpu": PREFILL_CASES, "cuda": GPU_PREFILL_CASES}, make_prefill),
    "decode_plan": Benchmark("planning decode attention on the host", measure_plans),
}
