"""Products with weights in planes, compared with the values of the blocks themselves."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from kernels.arguments.block_forms import FORMS
from kernels.arguments.block_rows import BlockRows
from kernels.arguments.code_planes import CodePlanes
from kernels.gpu import planes_linear as module
from kernels.operations.dequantize_blocks import dequantize_blocks
from kernels.operations.planes_linear import planes_linear
from tests.kernels.gpu.plausible_blocks import make_planes, plausible_rows

TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Relative to the sum of the magnitudes of a product. The result is rounded once; the weight is not."""


def make_weight(form: str, num_outputs: int, num_inputs: int, device: str) -> tuple[CodePlanes, Tensor]:
    """Returns the planes of rows and their values in float64."""
    rows = plausible_rows(form, num_outputs, num_inputs)
    values_OI = dequantize_blocks(rows).double()
    return make_planes(BlockRows(rows.blocks.to(device), form, num_inputs)), values_OI


def check_product(
    weight: tuple[CodePlanes, Tensor], num_tokens: int, dtype: torch.dtype, device: str, has_bias: bool = False
) -> None:
    planes, values_OI = weight
    generator = torch.Generator().manual_seed(num_tokens)
    x_TI = torch.randn(num_tokens, planes.num_inputs, generator=generator).to(dtype)
    bias_O = torch.randn(planes.num_outputs, generator=generator).to(dtype) if has_bias else None
    out_TO = planes_linear(x_TI.to(device), planes, None if bias_O is None else bias_O.to(device)).cpu().double()
    expected, size = x_TI.double() @ values_OI.T, x_TI.double().abs() @ values_OI.abs().T
    if bias_O is not None:
        expected, size = expected + bias_O.double(), size + bias_O.double().abs()
    assert bool(((out_TO - expected).abs() <= TOLERANCES[dtype] * size).all())


@pytest.mark.parametrize("form", FORMS)
def test_few_tokens(form: str, device: str, backend: Counter[str]) -> None:
    """Neither outputs nor tokens fill their blocks, nor inputs if they need not."""
    weight = make_weight(form, 70, FORMS[form].num_values + 256, device)
    check_product(weight, 3, torch.bfloat16, device, has_bias=True)
    assert backend["planes_linear"] == 1


@pytest.mark.parametrize("form", FORMS)
def test_many_tokens_are_multiplied_with_values(form: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outputs are three slices; the last is smaller."""
    num_inputs = FORMS[form].num_values + 256
    monkeypatch.setattr(module, "SLICE_BYTES", 30 * num_inputs * 4)
    check_product(make_weight(form, 70, num_inputs, device), 65, torch.float32, device)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("num_tokens", [1, 16, 17, 64, 65])
def test_every_count_of_tokens_and_dtype(num_tokens: int, dtype: torch.dtype, device: str) -> None:
    check_product(make_weight("Q4_1", 33, 96, device), num_tokens, dtype, device, has_bias=num_tokens % 2 == 1)


@pytest.mark.parametrize("form", ["Q5_0", "Q6_K", "I4_64"])
def test_weights_with_few_outputs_are_cut_by_their_inputs(
    form: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last part is smaller; without parts the result is nearly the same."""
    weight = make_weight(form, 9, 5 * 256, device)
    monkeypatch.setattr(module, "MANY_PROGRAMS", 3)
    check_product(weight, 2, torch.float32, device, has_bias=True)
    monkeypatch.setattr(module, "MANY_PROGRAMS", 1)
    check_product(weight, 2, torch.float32, device, has_bias=True)


def test_one_row_and_no_tokens(device: str) -> None:
    check_product(make_weight("Q8_0", 1, 32, device), 1, torch.bfloat16, device)
    planes, _ = make_weight("Q8_0", 1, 32, device)
    assert planes_linear(torch.empty(0, 32, device=device), planes, None).shape == (0, 1)


@pytest.mark.parametrize("num_tokens", [2, 65])
def test_segments_of_different_forms_write_their_columns(num_tokens: int, device: str) -> None:
    """As q, k and v of a GGUF file; the other columns stay as they are."""
    weights = [make_weight(form, num_rows, 256, device) for form, num_rows in (("Q4_K", 20), ("Q6_K", 7))]
    x_TI = torch.randn(num_tokens, 256, generator=torch.Generator().manual_seed(1)).to(device)
    out_TO = torch.full((num_tokens, 30), -1.0, device=device)
    first = 0
    for planes, values_OI in weights:
        part_TO = out_TO[:, first : first + planes.num_outputs]
        planes_linear(x_TI, planes, None, part_TO)
        torch.testing.assert_close(part_TO.cpu().double(), x_TI.cpu().double() @ values_OI.T, rtol=1e-4, atol=1e-4)
        first += planes.num_outputs
    assert bool((out_TO[:, first:] == -1).all())


@pytest.mark.parametrize("num_tokens", [1, 40, 200])
@pytest.mark.parametrize("form", ["Q4_K", "Q6_K", "F8_128"])
def test_shapes_of_models(form: str, num_tokens: int, device: str) -> None:
    """Several programs of outputs, parts of inputs and tiles of tokens; on a GPU a layer of 4,096."""
    size = (4096, 4096) if device == "cuda" else (130, 512)
    check_product(make_weight(form, *size, device), num_tokens, torch.bfloat16, device)
