"""Inputs of `norm_linear` whose outputs are about as large as 1."""

import torch
from torch import Tensor


def make_arguments(
    num_tokens: int,
    num_inputs: int,
    num_outputs: int,
    dtype: torch.dtype,
    device: str,
    has_update: bool = True,
    has_bias: bool = False,
    is_gated: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor, float, Tensor, Tensor | None, bool]:
    generator = torch.Generator().manual_seed(num_inputs + num_outputs)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(dtype).to(device)

    x, update = random(num_tokens, num_inputs, scale=3.0), random(num_tokens, num_inputs)
    norm_weight, weight = random(num_inputs), random(num_outputs, num_inputs, scale=num_inputs**-0.5)
    bias = random(num_outputs) if has_bias else None
    return x, update if has_update else None, norm_weight, 1e-5, weight, bias, is_gated
