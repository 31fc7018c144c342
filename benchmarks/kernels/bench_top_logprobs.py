"""Logprobs of one token a row and of the 20 likeliest, beside log_softmax and topk.

python -m benchmarks.kernels.bench_top_logprobs [--device cpu|cuda] [--quick] [--json FILE]
"""

import torch

from benchmarks.kernels.measure import Work, forms_of, run
from benchmarks.kernels.vocab_cases import CASES, VocabCase
from kernels.operations.top_logprobs import top_logprobs, top_logprobs_reference

NUM_TOP = 20


def make(case: VocabCase, device: torch.device) -> Work:
    logits, ids = case.logits(device), case.seeds(device)
    others = {
        "reference": lambda: top_logprobs_reference(logits, ids, NUM_TOP),
        "torch": lambda: logits.float().log_softmax(-1).topk(NUM_TOP),
    }
    return Work(forms_of("top_logprobs", logits, lambda: top_logprobs(logits, ids, NUM_TOP), others), logits.nbytes)


if __name__ == "__main__":
    raise SystemExit(run(__doc__, "top_logprobs", CASES, make))
