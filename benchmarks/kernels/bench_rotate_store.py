"""Norm of the heads, rotation and cache write beside the device's bandwidth.

python -m benchmarks.kernels.bench_rotate_store [--device cpu|cuda] [--quick] [--json FILE]
"""

import torch

from benchmarks.kernels.measure import Work, forms_of, run
from benchmarks.kernels.model_cases import ModelCase, model_cases
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import HeadNorms
from kernels.operations.rotate_store import rotate_store, rotate_store_reference

PAGE_SIZE, NUM_POSITIONS = 16, 8192
CASES = model_cases(("Qwen3-0.6B", "Llama-3-8B", "Qwen3-14B"))
EPS = 1e-6


def make(case: ModelCase, device: torch.device) -> Work:
    """The norms of the heads are Qwen3's; Llama's shape is measured with them, too."""
    shape, num_tokens = case.shape, case.num_tokens
    num_all_heads = shape.num_heads + 2 * shape.num_kv_heads
    heads = torch.randn(num_tokens, num_all_heads, shape.head_dim, device=device).bfloat16()
    num_slots = -(-num_tokens // PAGE_SIZE) * PAGE_SIZE
    kv = torch.empty(2, num_slots, shape.num_kv_heads, shape.head_dim, dtype=torch.bfloat16, device=device)
    cache = PagedKV(kv[0], kv[1], PAGE_SIZE)
    angles = torch.rand(NUM_POSITIONS, shape.head_dim // 2, device=device)
    tables = (angles.cos(), angles.sin())
    positions = torch.randint(NUM_POSITIONS, (num_tokens,), dtype=torch.int32, device=device)
    slots = torch.randperm(num_slots, device=device)[:num_tokens]
    weights = torch.ones(2, shape.head_dim, dtype=torch.bfloat16, device=device)
    norms = HeadNorms(weights[0], weights[1], EPS)
    arguments = (heads, cache, tables, positions, slots, norms)
    others = {"torch": lambda: rotate_store_reference(*arguments)}
    # All heads are read and written once, beside a row of both tables.
    num_bytes = 2 * heads.nbytes + num_tokens * 2 * angles[0].nbytes
    forms = forms_of("rotate_store", heads, lambda: rotate_store(*arguments), others)
    return Work(forms, num_bytes)


if __name__ == "__main__":
    raise SystemExit(run(__doc__, "rotate_store", CASES, make))
