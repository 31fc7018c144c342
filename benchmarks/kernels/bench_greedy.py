"""The most likely token of each row beside the device's bandwidth.

python -m benchmarks.kernels.bench_greedy [--device cpu|cuda] [--quick] [--json FILE]
"""

import torch

from benchmarks.kernels.measure import Work, forms_of, run
from benchmarks.kernels.vocab_cases import CASES, VocabCase
from kernels.operations.sample import greedy, greedy_reference


def make(case: VocabCase, device: torch.device) -> Work:
    logits = case.logits(device)
    others = {"reference": lambda: greedy_reference(logits), "torch": lambda: logits.argmax(-1)}
    return Work(forms_of("greedy", logits, lambda: greedy(logits), others), logits.nbytes)


if __name__ == "__main__":
    raise SystemExit(run(__doc__, "greedy", CASES, make))
