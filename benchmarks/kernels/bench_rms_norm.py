"""Residual addition and RMS norm beside the device's bandwidth.

python -m benchmarks.kernels.bench_rms_norm [--device cpu|cuda] [--quick] [--json FILE]
"""

import torch
from torch.nn import functional

from benchmarks.kernels.measure import Work, forms_of, run
from benchmarks.kernels.model_cases import ModelCase, model_cases
from kernels.operations.rms_norm import rms_norm, rms_norm_reference

EPS = 1e-6
CASES = model_cases(("Qwen3-0.6B", "Llama-3-8B", "Qwen3-14B"))


def make(case: ModelCase, device: torch.device) -> Work:
    size = case.shape.embedding_size
    x, update = torch.randn(2, case.num_tokens, size, device=device).bfloat16()
    weight = torch.ones(size, dtype=torch.bfloat16, device=device)
    others = {
        "reference": lambda: rms_norm_reference(x, weight, EPS, update),
        "torch": lambda: functional.rms_norm(x.add_(update), (size,), weight, EPS),
    }
    # Two operands are read, the sum and the norm of it written.
    return Work(forms_of("rms_norm", x, lambda: rms_norm(x, weight, EPS, update), others), 4 * x.nbytes)


if __name__ == "__main__":
    raise SystemExit(run(__doc__, "rms_norm", CASES, make))
