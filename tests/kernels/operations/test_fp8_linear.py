from typing import Literal

import pytest
import torch
from torch.nn import functional

from kernels.arguments.block_forms import FLOAT_FORMS, FORMS
from kernels.arguments.block_rows import Segment
from kernels.cpu.library import find_kernel
from kernels.formats.packed_fp8 import PACKED_FP8, PackedFp8Weight, find_packed_fp8
from kernels.operations.dequantize_blocks import dequantize_blocks
from kernels.operations.fp8_linear import fp8_linear, unpack_fp8
from tests.kernels.each_case import each_case
from tests.kernels.gpu.plausible_blocks import plausible_rows

BFLOAT16_ERROR = 4e-3
CPU = torch.device("cpu")


def make_weight(form: str, num_outputs: int, num_inputs: int) -> tuple[PackedFp8Weight, torch.Tensor]:
    """Returns a weight, set in two parts, and its values."""
    rows = plausible_rows(form, num_outputs, num_inputs)
    every_code = torch.arange(256, dtype=torch.uint8)
    every_code[every_code & 0x7F == 0x7F] = 0
    size = FORMS[form].num_values
    for chunk, codes in enumerate(every_code[: num_inputs // size * size].split(size)):
        rows.blocks[0, chunk * (size + 4) + 4 : (chunk + 1) * (size + 4)] = codes
    weight_format = find_packed_fp8([Segment(form, num_outputs)])
    assert weight_format is not None
    weight = weight_format.allocate((num_outputs, num_inputs), torch.bfloat16, CPU)
    cut = num_outputs // 3
    weight.set_rows(cut, rows.part(slice(cut, num_outputs), slice(None)))
    weight.set_rows(0, rows.part(slice(0, cut), slice(None)))
    return weight, dequantize_blocks(rows)


@each_case("form", FLOAT_FORMS)
def test_a_packed_weight_is_the_blocks(form: str) -> None:
    weight, values = make_weight(form, 70, 256)
    assert torch.equal(unpack_fp8(weight.codes), values)
    restored = PACKED_FP8.restore(weight.stored, weight.numbers)
    assert torch.equal(unpack_fp8(restored.codes), values)
    assert torch.equal(weight.look_up(torch.tensor([69, 3])), values[[69, 3]].bfloat16())


@each_case("form", FLOAT_FORMS)
@each_case("activation", [None, "tanh"])
@each_case(("num_inputs", "num_outputs"), [(256, 70), (1408, 96), (128, 1)])
def test_it_is_the_product(form: str, num_inputs: int, num_outputs: int, activation: Literal["tanh"] | None) -> None:
    """With one group of rows, several, and more rows than sums are kept for."""
    weight, values = make_weight(form, num_outputs, num_inputs)
    for num_tokens in (1, 2, 14, 15, 33, 300):
        generator = torch.Generator().manual_seed(num_tokens)
        x = torch.randn(num_tokens, num_inputs, generator=generator).bfloat16()
        bias = torch.randn(num_outputs, generator=generator).bfloat16() if num_tokens % 2 else None
        expected = functional.linear(x.double(), values.double(), None if bias is None else bias.double())
        if activation:
            expected = functional.gelu(expected, approximate=activation)
        got = weight.linear(bias, activation)(x)
        assert got.dtype == torch.bfloat16
        assert float((got.double() - expected).norm() / expected.norm()) < BFLOAT16_ERROR


def test_sums_are_as_good_as_in_float32(backend: str) -> None:
    """Each product is of a single code, which nothing rounds but the result's format."""
    weight, values = make_weight("F8_128", 32, 256)
    if find_kernel("fp8_linear", torch.bfloat16) is None:
        pytest.skip(f"{backend} has no kernel for it")
    out = fp8_linear(torch.eye(256).bfloat16(), weight.codes, None)
    assert torch.equal(out, values.T.bfloat16())


def test_a_row_is_the_same_bits_in_any_batch(backend: str) -> None:
    weight, _ = make_weight("F8_64", 70, 1344)
    if find_kernel("fp8_linear", torch.bfloat16) is None:
        pytest.skip(f"{backend} has no kernel for it")
    x = torch.randn(530, 1344, generator=torch.Generator().manual_seed(1)).bfloat16()
    together = fp8_linear(x, weight.codes, None)
    for begin, end in ((0, 1), (5, 7), (16, 33), (33, 90), (250, 520), (529, 530)):
        out = torch.full((end - begin, 70), float("nan"), dtype=torch.bfloat16)
        assert torch.equal(fp8_linear(x[begin:end], weight.codes, None, None, out), together[begin:end])
        assert torch.equal(out, together[begin:end])


def test_what_is_not_a_number_stays_in_its_row() -> None:
    weight, _ = make_weight("F8_32", 40, 64)
    x = torch.randn(20, 64).bfloat16()
    x[3, 7] = float("nan")
    assert fp8_linear(x, weight.codes, None).isnan().any(dim=1).nonzero().flatten().tolist() == [3]


def test_only_whole_weights_of_one_form_are_packed() -> None:
    assert find_packed_fp8([Segment("F8_64", 3), Segment("F8_64", 5)]) is not None
    assert find_packed_fp8([Segment("F8_64", 3), Segment("F8_32", 5)]) is None
    assert find_packed_fp8([Segment("Q8_0", 3)]) is None
    assert find_packed_fp8([]) is None
