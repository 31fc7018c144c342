"""Residual addition and layer norm beside the device's bandwidth.

python -m benchmarks.kernels.bench_layer_norm [--device cpu|cuda] [--quick] [--json FILE]
"""

import torch

from benchmarks.kernels.measure import Work, forms_of, run
from benchmarks.kernels.model_cases import ModelCase, model_cases
from kernels.operations.layer_norm import layer_norm, layer_norm_reference

EPS = 1e-5
CASES = model_cases(("GPT-2 124M",))


def make(case: ModelCase, device: torch.device) -> Work:
    size = case.shape.embedding_size
    x, update = torch.randn(2, case.num_tokens, size, device=device).bfloat16()
    weight, bias = torch.randn(2, size, device=device).bfloat16()
    others = {"torch": lambda: layer_norm_reference(x, weight, bias, EPS, update)}
    # Two operands are read, the sum and the norm of it written.
    return Work(forms_of("layer_norm", x, lambda: layer_norm(x, weight, bias, EPS, update), others), 4 * x.nbytes)


if __name__ == "__main__":
    raise SystemExit(run(__doc__, "layer_norm", CASES, make))
