"""Residual addition, RMS norm, linear layer and activation in one kernel, beside the single operations.

python -m benchmarks.kernels.bench_norm_linear [--device cpu|cuda] [--quick] [--json FILE]

On a GPU the single operations are launched one behind another, as in a captured graph, so the gaps between them count.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

from benchmarks.kernels.measure import Work, forms_of, run
from kernels.gpu.model_shapes import MODEL_SHAPES
from kernels.norm_linear import MAX_TOKENS, norm_linear
from kernels.rms_norm import rms_norm
from kernels.silu_mul import silu_mul

EPS = 1e-6


@dataclass(frozen=True)
class LinearCase:
    """The linear layer behind a norm, for attention or, gated, for the MLP."""

    num_tokens: int
    num_inputs: int
    num_outputs: int
    is_gated: bool


def cases_of(nums: tuple[int, ...]) -> dict[str, LinearCase]:
    cases: dict[str, LinearCase] = {}
    for model in ("Qwen3-0.6B", "Llama-3-8B", "Qwen3-14B"):
        shape = MODEL_SHAPES[model]
        heads = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        for name, num_outputs, is_gated in (("heads", heads, False), ("gate and up", 2 * shape.mlp_size, True)):
            for num in nums:
                cases[f"{model}, {name}, {num}"] = LinearCase(num, shape.embedding_size, num_outputs, is_gated)
    return cases


def make(case: LinearCase, device: torch.device) -> Work:
    x, update = torch.randn(2, case.num_tokens, case.num_inputs, device=device).bfloat16()
    norm_weight = torch.ones(case.num_inputs, dtype=torch.bfloat16, device=device)
    weight = torch.randn(case.num_outputs, case.num_inputs, device=device).mul_(case.num_inputs**-0.5).bfloat16()

    def singly() -> torch.Tensor:
        out = functional.linear(rms_norm(x, norm_weight, EPS, update), weight)
        return silu_mul(out) if case.is_gated else out

    def together() -> torch.Tensor:
        return norm_linear(x, update, norm_weight, EPS, weight, None, case.is_gated)[1]

    # Nearly all that is moved is the weight.
    return Work(forms_of("norm_linear", x, together, {"singly": singly}), weight.nbytes)


CASES = {"cpu": cases_of((1,)), "cuda": cases_of((1, 8, MAX_TOKENS))}

if __name__ == "__main__":
    raise SystemExit(run(__doc__, "norm_linear", CASES, make))
