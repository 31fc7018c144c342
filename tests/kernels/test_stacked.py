"""Linear layers whose parts have different formats."""

import pytest
import torch
from torch import Tensor

from kernels.formats.packed import PackedWeight
from kernels.formats.plain import PlainWeight
from kernels.formats.quantized import QUANTIZED
from kernels.formats.stacked import StackedLinear, stack_linears
from kernels.operations.packed_linear import pack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_stack_computes_each_part_in_its_format(dtype: torch.dtype, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 64, generator=generator).to(dtype)
    values = [torch.randn(rows, 64, generator=generator).to(dtype) for rows in (48, 32, 16, 7)]
    biases: list[Tensor | None] = [torch.randn(len(part), generator=generator).to(dtype) for part in values]
    biases = biases if has_bias else [None] * 4
    weights = (
        PlainWeight(values[0]),
        PackedWeight(pack(values[1]), 32),
        QUANTIZED[8].quantize(values[2]),
        QUANTIZED[4].quantize(values[3]),
    )
    layer = stack_linears(weights, biases, "tanh")
    expected = torch.cat([weight.linear(bias, "tanh")(x) for weight, bias in zip(weights, biases, strict=True)], dim=1)
    assert isinstance(layer, StackedLinear)
    assert torch.equal(layer(x), expected)
    out = torch.full((3, 103), float("nan"), dtype=dtype)
    assert layer(x, out) is out
    assert torch.equal(out, expected)


def test_only_different_formats_are_stacked() -> None:
    weight = PlainWeight(torch.eye(4))
    assert not isinstance(stack_linears([weight], [None], None), StackedLinear)
    with pytest.raises(AssertionError):
        stack_linears([weight, weight], [None, None], None)
