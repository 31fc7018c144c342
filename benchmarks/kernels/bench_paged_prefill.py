"""Prefill attention beside the device's rate of bfloat16 products.

python -m benchmarks.kernels.bench_paged_prefill [--device cpu|cuda] [--quick] [--json FILE]

SDPA is torch's own attention over K and V that lie densely, for cases with nothing before the new tokens.
"""

import torch
from torch.nn import functional

from benchmarks.kernels.cases import Case, make_case
from benchmarks.kernels.measure import Form, Work, forms_of, run
from kernels.arguments.rows import PrefillRows
from kernels.gpu.launch_table import count_tile_tokens
from kernels.operations.paged_prefill import paged_prefill, paged_prefill_reference
from kernels.plans.prefill_tiles import TILE_WORDS, max_prefill_tiles, plan_prefill_tiles

CASES = {
    "GPT-2 124M, 512 new": Case(12, 12, 64, 1, 512, 0),
    "GPT-2 124M, 388 after 512": Case(12, 12, 64, 1, 388, 512),
    "GPT-2 124M, 8 x 32 after 768": Case(12, 12, 64, 8, 32, 768),
    "Llama 135M, 388 after 512": Case(9, 3, 64, 1, 388, 512),
    "Qwen3-0.6B, 388 after 512": Case(16, 8, 128, 1, 388, 512),
}
GPU_CASES = {
    f"{model}, {num_rows} x {num_new} after {num_before}": Case(num_heads, 8, 128, num_rows, num_new, num_before)
    for model, num_heads in (("Qwen3-0.6B", 16), ("Llama-3-8B", 32), ("Qwen3-14B", 40))
    for num_rows, num_new, num_before in ((1, 128, 0), (16, 512, 0), (1, 8192, 0), (1, 2048, 6144))
}


def make(case: Case, device: torch.device) -> Work:
    made = make_case(case, device)
    lens = torch.full((2, case.num_rows), case.num_new, dtype=torch.int32)
    lens[1] = case.num_before
    tile_tokens = count_tile_tokens(case.num_heads // case.num_kv_heads, case.head_dim, made.query.dtype.itemsize)
    tiles = torch.empty(max_prefill_tiles(len(made.query), case.num_rows, tile_tokens), TILE_WORDS, dtype=torch.int32)
    plan_prefill_tiles(lens[0].numpy(), lens[1].numpy(), tiles.numpy(), tile_tokens)
    lens = lens.to(device)
    rows = PrefillRows(made.page_tables, lens[0], lens[1], tiles.to(device))
    arguments = (made.query, made.cache, rows, case.head_dim**-0.5, made.out)
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


if __name__ == "__main__":
    raise SystemExit(run(__doc__, "paged_prefill", {"cpu": CASES, "cuda": GPU_CASES}, make))
