"""Decode attention beside the device's bandwidth: K and V are read once, and little is computed.

python -m benchmarks.kernels.bench_paged_decode [--device cpu|cuda] [--quick] [--json FILE]

SDPA is torch's own attention over K and V that lie densely, row by row, all equally long: no pages, no lengths.
"Triton" is the form in use; beside it are that which merges parts otherwise, in one kernel or in two, and, where rows
share a prefix, that which reads the prefix for each row. Bytes are those of each row, so that a form which reads once
what rows share can seem to be above the bandwidth.
"""

import numpy as np
import torch
from torch.nn import functional

from benchmarks.kernels.cases import Case, MadeCase, make_case
from benchmarks.kernels.measure import Form, Work, forms_of, run
from kernels.dispatch import count_programs
from kernels.gpu.launch_table import find_launch
from kernels.gpu.triton_kernels import find_triton_kernel
from kernels.operations.paged_decode import paged_decode, paged_decode_reference
from kernels.plans.decode_work import DecodeLayout, DecodeShape, DecodeWork, make_decode_scratch, plan_decode_work

CASES = {
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
GPU_CASES = {
    f"{model}, {num_rows} x {context}": Case(num_heads, 8, 128, num_rows, 1, context - 1)
    for model, num_heads in (("Qwen3-0.6B", 16), ("Llama-3-8B", 32), ("Qwen3-14B", 40))
    for num_rows, context in ((1, 512), (1, 8192), (64, 512), (256, 512), (256, 1024), (64, 8192))
} | {
    f"{model}, 64 x 1100, 1000 shared": Case(num_heads, 8, 128, 64, 1, 1099, 1000)
    for model, num_heads in (("Qwen3-0.6B", 16), ("Llama-3-8B", 32), ("Qwen3-14B", 40))
}


def make(case: Case, device: torch.device) -> Work:
    made = make_case(case, device)
    num_keys = torch.full((case.num_rows,), case.num_before + 1, dtype=torch.int32, device=device)
    arguments = (made.query, made.cache, made.page_tables, num_keys, case.head_dim**-0.5, made.out)
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
    launch_shape = case.num_heads // case.num_kv_heads, case.head_dim, made.query.dtype.itemsize
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


if __name__ == "__main__":
    raise SystemExit(run(__doc__, "paged_decode", {"cpu": CASES, "cuda": GPU_CASES}, make))
