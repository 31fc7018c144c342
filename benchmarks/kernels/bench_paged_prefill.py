"""Prefill attention beside the machine's rate of bfloat16 products.

python -m benchmarks.kernels.bench_paged_prefill [--threads N] [--json FILE]
"""

import torch

from benchmarks.kernels.cases import Case, make_case
from benchmarks.kernels.measure import Row, finish, forms_of, median_ms, product_rate, start
from kernels.paged_prefill import paged_prefill, paged_prefill_reference

CASES = {
    "GPT-2 124M, 512 new": Case(12, 12, 64, 1, 512, 0),
    "GPT-2 124M, 388 after 512": Case(12, 12, 64, 1, 388, 512),
    "GPT-2 124M, 8 x 32 after 768": Case(12, 12, 64, 8, 32, 768),
    "Llama 135M, 388 after 512": Case(9, 3, 64, 1, 388, 512),
    "Qwen3 0.6B, 388 after 512": Case(16, 8, 128, 1, 388, 512),
}


def measure(case: Case, rounds: int) -> tuple[dict[str, float], int]:
    """Returns the median ms of each form and the floating-point operations that causal attention needs."""
    made = make_case(case)
    lens = torch.full((2, case.num_rows), case.num_new, dtype=torch.int32)
    lens[1] = case.num_before
    arguments = (made.query, made.cache, made.page_tables, lens[0], lens[1], case.head_dim**-0.5, made.out)
    forms = forms_of("paged_prefill", lambda: paged_prefill(*arguments), lambda: paged_prefill_reference(*arguments))
    num_scores = case.num_rows * sum(case.num_before + token + 1 for token in range(case.num_new))
    return median_ms(forms, rounds), 4 * num_scores * case.num_heads * case.head_dim


def main() -> int:
    options = start(__doc__)
    rows: list[Row] = []
    for name, case in CASES.items():
        times, num_operations = measure(case, options.rounds)
        row: Row = {"case": name}
        row |= {f"{form} ms": ms for form, ms in times.items()}
        row |= {f"{form} GFLOP/s": num_operations / ms / 1e6 for form, ms in times.items()}
        rows.append(row)
    finish(options, "paged_prefill", rows, {"bfloat16 product GFLOP/s": product_rate(options.rounds)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
