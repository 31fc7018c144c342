"""Decode attention beside the device's bandwidth: K and V are read once, and little is computed.

python -m benchmarks.kernels.bench_paged_decode [--device cpu|cuda] [--quick] [--json FILE]

SDPA is torch's own attention over K and V that lie densely, row by row, all equally long: no pages, no lengths.
"""

import torch
from torch.nn import functional

from benchmarks.kernels.cases import Case, make_case
from benchmarks.kernels.measure import Work, forms_of, run
from kernels.paged_decode import paged_decode, paged_decode_reference

CASES = {
    "GPT-2 124M, 1 x 160": Case(12, 12, 64, 1, 1, 159),
    "GPT-2 124M, 1 x 1000": Case(12, 12, 64, 1, 1, 999),
    "GPT-2 124M, 32 x 200": Case(12, 12, 64, 32, 1, 199),
    "Llama 135M, 32 x 200": Case(9, 3, 64, 32, 1, 199),
    "Qwen3-0.6B, 8 x 512": Case(16, 8, 128, 8, 1, 511),
}
GPU_CASES = {
    f"{model}, {num_rows} x {context}": Case(num_heads, 8, 128, num_rows, 1, context - 1)
    for model, num_heads in (("Qwen3-0.6B", 16), ("Llama-3-8B", 32), ("Qwen3-14B", 40))
    for num_rows, context in ((1, 512), (1, 8192), (64, 512), (256, 512), (256, 1024), (64, 8192))
}


def make(case: Case, device: torch.device) -> Work:
    made = make_case(case, device)
    num_keys = torch.full((case.num_rows,), case.num_before + 1, dtype=torch.int32, device=device)
    arguments = (made.query, made.cache, made.page_tables, num_keys, case.head_dim**-0.5, made.out)
    keys, values = made.dense_heads()
    keys, values = keys[:, :, : case.num_before + 1], values[:, :, : case.num_before + 1]
    query = made.query[:, :, None]
    others = {
        "torch": lambda: paged_decode_reference(*arguments),
        "SDPA": lambda: functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True),
    }
    num_bytes = 2 * case.num_rows * (case.num_before + 1) * case.num_kv_heads * case.head_dim * 2
    return Work(forms_of("paged_decode", made.query, lambda: paged_decode(*arguments), others), num_bytes)


if __name__ == "__main__":
    raise SystemExit(run(__doc__, "paged_decode", {"cpu": CASES, "cuda": GPU_CASES}, make))
