"""Draws with top-k and top-p from bfloat16 logits, beside the same on filtered copies.

python -m benchmarks.kernels.bench_draw_filtered [--device cpu|cuda] [--quick] [--json FILE]
"""

import torch

from benchmarks.kernels.bench_filter_top import TOP_K, TOP_P
from benchmarks.kernels.measure import Work, forms_of, run
from benchmarks.kernels.vocab_cases import CASES, VocabCase
from kernels.arguments.rows import RowDraws
from kernels.operations.draw_filtered import draw_filtered, draw_filtered_reference


def make(case: VocabCase, device: torch.device) -> Work:
    """Half of the rows have a top-k and a top-p, half a top-p alone."""
    logits, num_rows = case.logits(device), case.num_rows
    rows = torch.arange(num_rows, device=device)
    top_ks = torch.full((num_rows,), case.vocab_size, device=device)
    top_ks[::2] = TOP_K
    ones = torch.ones(num_rows, device=device)
    draws = RowDraws(ones, rows, rows, top_ks, ones * TOP_P, ones * 0)
    others = {"reference": lambda: draw_filtered_reference(logits, rows, draws)}
    return Work(forms_of("draw_filtered", logits, lambda: draw_filtered(logits, rows, draws), others), logits.nbytes)


if __name__ == "__main__":
    raise SystemExit(run(__doc__, "draw_filtered", CASES, make))
