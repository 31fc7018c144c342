"""What a grammar allows beside the device's bandwidth: bitmasks of which half the words hold a bit.

python -m benchmarks.kernels.bench_apply_bitmask [--device cpu|cuda] [--quick] [--json FILE]
"""

import torch

from benchmarks.kernels.measure import Work, forms_of, run
from benchmarks.kernels.vocab_cases import CASES, VocabCase
from kernels.operations.apply_bitmask import apply_bitmask, apply_bitmask_reference


def make(case: VocabCase, device: torch.device) -> Work:
    logits, rows = case.logits(device).float(), torch.arange(case.num_rows, device=device)
    num_words = -(-case.vocab_size // 32)
    bitmask = torch.randint(-(2**31), 2**31, (case.num_rows, num_words), device=device).to(torch.int32)
    bitmask[:, ::2] = 0
    others = {"reference": lambda: apply_bitmask_reference(logits, rows, bitmask)}
    return Work(forms_of("apply_bitmask", logits, lambda: apply_bitmask(logits, rows, bitmask), others), logits.nbytes)


if __name__ == "__main__":
    raise SystemExit(run(__doc__, "apply_bitmask", CASES, make))
