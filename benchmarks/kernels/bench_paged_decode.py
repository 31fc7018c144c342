"""Decode attention beside the machine's read bandwidth: K and V are read once, and little is computed.

python -m benchmarks.kernels.bench_paged_decode [--threads N] [--json FILE]
"""

import torch

from benchmarks.kernels.cases import Case, make_case
from benchmarks.kernels.measure import Row, finish, forms_of, median_ms, read_bandwidth, start
from kernels.paged_decode import paged_decode, paged_decode_reference

CASES = {
    "GPT-2 124M, 1 x 160": Case(12, 12, 64, 1, 1, 159),
    "GPT-2 124M, 1 x 1000": Case(12, 12, 64, 1, 1, 999),
    "GPT-2 124M, 32 x 200": Case(12, 12, 64, 32, 1, 199),
    "Llama 135M, 32 x 200": Case(9, 3, 64, 32, 1, 199),
    "Qwen3 0.6B, 8 x 512": Case(16, 8, 128, 8, 1, 511),
}


def measure(case: Case, rounds: int) -> tuple[dict[str, float], int]:
    """Returns the median ms of each form and the bytes of K and V."""
    made = make_case(case)
    num_keys = torch.full((case.num_rows,), case.num_before + 1, dtype=torch.int32)
    arguments = (made.query, made.cache, made.page_tables, num_keys, case.head_dim**-0.5, made.out)
    forms = forms_of("paged_decode", lambda: paged_decode(*arguments), lambda: paged_decode_reference(*arguments))
    num_bytes = 2 * case.num_rows * (case.num_before + 1) * case.num_kv_heads * case.head_dim * 2
    return median_ms(forms, rounds), num_bytes


def main() -> int:
    options = start(__doc__)
    rows: list[Row] = []
    for name, case in CASES.items():
        times, num_bytes = measure(case, options.rounds)
        row: Row = {"case": name, "MB": num_bytes / 1e6}
        row |= {f"{form} ms": ms for form, ms in times.items()}
        row |= {f"{form} GB/s": num_bytes / ms / 1e6 for form, ms in times.items()}
        rows.append(row)
    finish(options, "paged_decode", rows, {"read GB/s": read_bandwidth(options.rounds)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
