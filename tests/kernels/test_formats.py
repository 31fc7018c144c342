import pytest
import torch
from torch.nn import functional

from kernels.formats import plain
from kernels.formats.packed import PACKED
from kernels.formats.packed_blocks import PackedBlocksWeight
from kernels.formats.plain import PlainWeight
from kernels.formats.quantized import QUANTIZED
from kernels.formats.weight_format import Weight
from kernels.operations.block_linear import unpack
from kernels.operations.gelu import GeluKind
from kernels.operations.packed_linear import has_packed_kernel
from kernels.operations.quantize import Bits
from tests.kernels.each_case import each_case


def check_product(dtype: torch.dtype, has_bias: bool, num_tokens: int, activation: GeluKind | None) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, x = torch.randn(70, 48, generator=generator), torch.randn(num_tokens, 48, generator=generator)
    bias = torch.randn(70, generator=generator) if has_bias else None
    expected = functional.linear(
        x.to(dtype).double(), weight.to(dtype).double(), bias.to(dtype).double() if has_bias else None
    )
    if activation is not None:
        expected = functional.gelu(expected, approximate="tanh" if activation == "tanh" else "none")
    with torch.inference_mode():
        layers = [PlainWeight(weight.to(dtype)).linear(bias.to(dtype) if has_bias else None, activation)]
        if has_packed_kernel(weight.to(dtype)):
            packed = PACKED.allocate((70, 48), dtype, weight.device)
            packed.set_rows(0, weight.to(dtype))
            assert torch.equal(packed.look_up(torch.tensor([69, 3])), weight[[69, 3]].to(dtype))
            layers.append(packed.linear(bias.to(dtype) if has_bias else None, activation))
        for layer in layers:
            check(layer(x.to(dtype)), expected)


@each_case("dtype", [torch.float32, torch.float16, torch.bfloat16])
@each_case("has_bias", [True, False])
@each_case("num_tokens", [1, 3, 64])
@each_case("activation", [None, "tanh", "exact"])
def test_it_is_the_product_whatever_computes_it(
    dtype: torch.dtype, has_bias: bool, num_tokens: int, activation: GeluKind | None
) -> None:
    check_product(dtype, has_bias, num_tokens, activation)


def check(got: torch.Tensor, expected: torch.Tensor) -> None:
    dtype = got.dtype
    assert float((got.double() - expected).norm() / expected.norm()) < {4: 1e-6, 2: 4e-3}[dtype.itemsize]


def test_bfloat16_on_a_processor_where_onednn_does_not_multiply_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "onednn_has_bfloat16", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    check_product(torch.bfloat16, True, 3, "tanh")


def values_of(weight: Weight) -> torch.Tensor:
    assert isinstance(weight, PackedBlocksWeight)
    return unpack(weight.blocks)


@each_case("bits", [8, 4])
@each_case("dtype", [torch.float32, torch.bfloat16])
@each_case("activation", [None, "tanh", "exact"])
def test_a_quantized_weight_is_multiplied_as_what_it_stands_for(
    bits: Bits, dtype: torch.dtype, activation: GeluKind | None
) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, x, bias = (torch.randn(*shape, generator=generator) for shape in ((70, 48), (9, 48), (70,)))
    quantized = QUANTIZED[bits].quantize(weight.to(dtype))
    expected = functional.linear(x.to(dtype).float(), values_of(quantized), bias.to(dtype).float())
    if activation is not None:
        expected = functional.gelu(expected, approximate="tanh" if activation == "tanh" else "none")
    got = quantized.linear(bias.to(dtype), activation)(x.to(dtype))
    assert got.dtype == dtype
    assert float((got.float() - expected).norm() / expected.norm()) < 0.02  # activations have 8 bits
