"""The gated activation beside the device's bandwidth.

python -m benchmarks.kernels.bench_silu_mul [--device cpu|cuda] [--quick] [--json FILE]
"""

import torch

from benchmarks.kernels.measure import Work, forms_of, run
from benchmarks.kernels.model_cases import ModelCase, model_cases
from kernels.operations.silu_mul import silu_mul, silu_mul_reference

CASES = model_cases(("Qwen3-0.6B", "Llama-3-8B", "Qwen3-14B"))


def make(case: ModelCase, device: torch.device) -> Work:
    gate_up = torch.randn(case.num_tokens, 2 * case.shape.mlp_size, device=device).bfloat16()
    others = {"torch": lambda: silu_mul_reference(gate_up)}
    # Both halves are read, one is written.
    return Work(forms_of("silu_mul", gate_up, lambda: silu_mul(gate_up), others), gate_up.nbytes * 3 // 2)


if __name__ == "__main__":
    raise SystemExit(run(__doc__, "silu_mul", CASES, make))
