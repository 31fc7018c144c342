"""GELU beside the device's bandwidth.

python -m benchmarks.kernels.bench_gelu [--device cpu|cuda] [--quick] [--json FILE]
"""

import torch

from benchmarks.kernels.measure import Work, forms_of, run
from benchmarks.kernels.model_cases import ModelCase, model_cases
from kernels.operations.gelu import gelu, gelu_reference

CASES = model_cases(("GPT-2 124M",))


def make(case: ModelCase, device: torch.device) -> Work:
    x = torch.randn(case.num_tokens, case.shape.mlp_size, device=device).bfloat16()
    return Work(
        forms_of("gelu", x, lambda: gelu(x, "tanh"), {"torch": lambda: gelu_reference(x, "tanh")}), 2 * x.nbytes
    )


if __name__ == "__main__":
    raise SystemExit(run(__doc__, "gelu", CASES, make))
