"""Rows with a temperature, from the head's logits to tokens, beside the device's bandwidth.

python -m benchmarks.kernels.bench_draw [--device cpu|cuda] [--quick] [--json FILE]
"""

import torch

from benchmarks.kernels.measure import Work, forms_of, run
from benchmarks.kernels.vocab_cases import CASES, VocabCase
from kernels.operations.sample import draw, draw_reference

TEMPERATURE = 0.6


def make(case: VocabCase, device: torch.device) -> Work:
    logits, seeds = case.logits(device), case.seeds(device)
    temperatures = torch.full((case.num_rows,), TEMPERATURE, device=device)
    others = {
        "greedy, sample": lambda: draw_reference(logits, temperatures, seeds, seeds),
        "torch": lambda: (logits.float() / temperatures[:, None]).softmax(-1).multinomial(1),
    }
    forms = forms_of("draw", logits, lambda: draw(logits, temperatures, seeds, seeds), others)
    return Work(forms, logits.nbytes)


if __name__ == "__main__":
    raise SystemExit(run(__doc__, "draw", CASES, make))
