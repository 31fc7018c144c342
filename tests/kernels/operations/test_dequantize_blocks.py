import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from kernels.arguments.block_forms import FORMS, GGUF_FORMS
from kernels.arguments.block_rows import BlockRows
from kernels.operations.dequantize_blocks import dequantize_blocks, has_finite_scales
from tests.kernels.each_case import each_case
from tests.kernels.operations.block_forms import GOLDEN, gguf_values, random_blocks


def assert_same_bits(values: Tensor, expected: Tensor) -> None:
    assert values.dtype == expected.dtype == torch.float32
    assert torch.equal(values.view(torch.int32), expected.view(torch.int32))


@each_case("form", GGUF_FORMS)
def test_values_are_those_of_the_gguf_package(form: str) -> None:
    golden = load_file(GOLDEN)
    rows = BlockRows(golden[form], form, 256)
    assert_same_bits(dequantize_blocks(rows), golden[f"{form} values"])


@each_case("form", GGUF_FORMS)
def test_values_of_random_blocks(form: str) -> None:
    pytest.importorskip("gguf", reason="the values come from the gguf package")
    blocks = random_blocks(form, 64, 1024, seed=1)
    assert_same_bits(dequantize_blocks(BlockRows(blocks, form, 1024)), gguf_values(form, blocks))


@each_case("form", FORMS)
def test_rows_may_be_a_part_of_a_larger_tensor(form: str) -> None:
    blocks = random_blocks(form, 4, 512, seed=2)
    half = blocks.shape[1] // 2
    values = dequantize_blocks(BlockRows(blocks, form, 512))
    part = dequantize_blocks(BlockRows(blocks[1:3, half:], form, 256))
    assert_same_bits(part, values[1:3, 256:].contiguous())


@each_case("form", FORMS)
def test_blocks_that_do_not_fill_the_row_are_refused(form: str) -> None:
    with pytest.raises(AssertionError):
        BlockRows(random_blocks(form, 4, 512, seed=3), form, 256)


@each_case("form", FORMS)
@each_case("exponent", [0x7C, 0xFE])
def test_scales_that_are_not_finite_are_found(form: str, exponent: int) -> None:
    blocks = random_blocks(form, 4, 512, seed=4)
    assert has_finite_scales(BlockRows(blocks, form, 512))
    for begin in FORMS[form].halves:
        damaged = blocks.clone()
        damaged[2, begin + 1 - FORMS[form].num_bytes] = exponent
        rows = BlockRows(damaged, form, 512)
        assert not has_finite_scales(rows)
        assert not dequantize_blocks(rows)[2].isfinite().all()
