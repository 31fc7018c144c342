"""Products of fp8 codes, compared with those of the numbers that they stand for, and with unrounded activations."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from kernels.arguments.block_forms import FLOAT_FORMS
from kernels.arguments.block_rows import BlockRows, Segment
from kernels.arguments.code_planes import CodePlanes
from kernels.formats.planes import PlanesFormat
from kernels.formats.quantized import FP8
from kernels.gpu import plain_linear
from kernels.gpu.fusions import fuse
from kernels.operations.code_planes import dequantize_planes
from kernels.operations.quantize_rows import quantize_rows
from kernels.operations.scaled_linear import scaled_linear
from tests.kernels.gpu.plausible_blocks import make_planes, plausible_rows

TOLERANCES = {torch.float32: 5e-4, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Relative to the sum of the magnitudes of a product: a GPU adds codes with about 14 bits."""


def multiply(x_TI: Tensor, planes: CodePlanes, bias_O: Tensor | None) -> Tensor:
    out_TO = x_TI.new_empty(len(x_TI), planes.num_outputs)
    scaled_linear(x_TI, planes, bias_O, out_TO)
    return out_TO


def check_product(form: str, size: tuple[int, int, int], dtype: torch.dtype, device: str, has_bias: bool) -> None:
    """`size`: tokens, outputs and inputs."""
    num_tokens, num_outputs, num_inputs = size
    rows = plausible_rows(form, num_outputs, num_inputs)
    planes = make_planes(BlockRows(rows.blocks.to(device), form, num_inputs))
    generator = torch.Generator().manual_seed(num_tokens)
    sizes_T1 = 10.0 ** torch.randint(-3, 2, (num_tokens, 1), generator=generator)
    x_TI = (torch.randn(num_tokens, num_inputs, generator=generator) * sizes_T1).to(device, dtype)
    bias_O = torch.randn(num_outputs, generator=generator).to(device, dtype) if has_bias else None
    codes_TP, scale_T = quantize_rows(x_TI, planes.low.shape[1])
    rounded_TI = (codes_TP.float() * scale_T[:, None])[:, :num_inputs].double()
    values_OI, out_TO = dequantize_planes(planes).double(), multiply(x_TI, planes, bias_O).double()
    expected, magnitude = rounded_TI @ values_OI.T, rounded_TI.abs() @ values_OI.abs().T
    if bias_O is not None:
        expected, magnitude = expected + bias_O.double(), magnitude + bias_O.double().abs()
    assert bool(((out_TO - expected).abs() <= TOLERANCES[dtype] * magnitude).all())
    exact_TO = x_TI.double() @ values_OI.T
    error_T = (rounded_TI @ values_OI.T - exact_TO).norm(dim=1) / exact_TO.norm(dim=1)
    assert 0.005 < float(error_T.mean()) < 0.04
    assert float(error_T.max()) < 0.08


@pytest.mark.parametrize("form", FLOAT_FORMS)
@pytest.mark.parametrize(
    ("num_tokens", "dtype", "has_bias"),
    [(3, torch.bfloat16, True), (65, torch.float32, False), (64, torch.float16, True), (1, torch.float32, False)],
    ids=str,
)
def test_few_and_many_tokens_of_any_size(
    form: str, num_tokens: int, dtype: torch.dtype, has_bias: bool, device: str, backend: Counter[str]
) -> None:
    """Neither outputs nor tokens nor inputs fill their blocks."""
    check_product(form, (num_tokens, 140, 896), dtype, device, has_bias)
    assert backend["scaled_linear"] == 1


@pytest.mark.parametrize("num_programs", [1, 6])
def test_inputs_are_cut_into_parts(num_programs: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last part is smaller; the bias is added once."""
    monkeypatch.setattr(plain_linear, "MANY_PROGRAMS", num_programs)
    check_product("F8_128", (5, 70, 2304), torch.float32, device, has_bias=True)


def test_activations_that_are_codes_lose_nothing(device: str) -> None:
    """Powers of two are codes of any scale: the result is that of float64."""
    generator = torch.Generator().manual_seed(1)
    x_TI = 2.0 ** torch.randint(-3, 4, (4, 256), generator=generator)
    weight = FP8.quantize(torch.randint(-7, 8, (33, 256), generator=generator).float().to(device) * 64)
    expected = x_TI.double() @ dequantize_planes(weight.parts[0]).cpu().double().T
    found = multiply(x_TI.to(device), weight.parts[0], None)
    torch.testing.assert_close(found.cpu().double(), expected, rtol=2e-4, atol=2e-4 * float(expected.abs().max()))


def test_a_token_that_is_not_finite_is_seen_and_leaves_the_others_alone(device: str) -> None:
    weight = FP8.quantize(torch.randn(40, 128, generator=torch.Generator().manual_seed(2)).to(device))
    x_TI = torch.randn(4, 128, generator=torch.Generator().manual_seed(3)).to(device)
    x_TI[1, 5], x_TI[2, 7], x_TI[3] = float("nan"), float("inf"), 0.0
    out_TO = multiply(x_TI, weight.parts[0], None)
    assert bool(out_TO[0].isfinite().all())
    assert not bool(out_TO[1:3].isfinite().any())
    assert not bool(out_TO[3].any())
    assert multiply(x_TI[:0], weight.parts[0], None).shape == (0, 40)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_become_the_codes_of_the_reference(dtype: torch.dtype, device: str) -> None:
    rows = torch.randn(20, 300, generator=torch.Generator().manual_seed(4))
    rows = (rows * 10.0 ** torch.arange(-10, 10)[:, None]).to(dtype)
    rows[3] = 0
    codes, scales = quantize_rows(rows.to(device), 512)
    largest = rows.float().abs().amax(1)
    torch.testing.assert_close(scales.cpu(), largest / 448)
    assert not bool(codes[:, 300:].float().any())
    error = ((codes.float() * scales[:, None])[:, :300].cpu() - rows.float()).abs()
    assert bool((error <= (rows.float().abs() / 16 + largest[:, None] * 2.0**-18) * 1.0001).all())


@pytest.mark.parametrize("fusions", [(), ("fp8_products",)], ids=["widened", "codes"])
def test_a_switch_decides_how_a_weight_is_multiplied(
    fusions: tuple[str, ...], device: str, backend: Counter[str]
) -> None:
    """A checkpoint's weight, and one quantized here, whose outputs have a scale each."""
    fuse(*fusions)
    rows = plausible_rows("F8_64", 40, 192)
    of_file = PlanesFormat((Segment("F8_64", 40),)).allocate((40, 192), torch.bfloat16, torch.device(device))
    of_file.set_rows(0, BlockRows(rows.blocks.to(device), "F8_64", 192))
    weights = of_file, FP8.quantize(torch.randn(40, 192, generator=torch.Generator().manual_seed(5)).to(device))
    x_TI = torch.randn(3, 192, generator=torch.Generator().manual_seed(6)).to(device)
    for weight in weights:
        exact = x_TI @ dequantize_planes(weight.parts[0]).T
        error = float((weight.linear(None, None)(x_TI) - exact).norm() / exact.norm())
        assert 0.01 < error < 0.05 if fusions else error < 1e-5
    assert (backend["scaled_linear"], backend["planes_linear"]) == ((2, 0) if fusions else (0, 2))
