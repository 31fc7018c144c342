"""Weights in planes: rows in blocks of several forms are one weight."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels import dispatch
from kernels.arguments.block_rows import BlockRows, Segment
from kernels.formats import planes
from kernels.formats.planes import PlanesFormat, PlanesWeight, has_planes
from kernels.formats.registry import find_block_format
from kernels.operations.dequantize_blocks import dequantize_blocks
from kernels.operations.gelu import GeluKind
from tests.kernels.each_case import each_case
from tests.kernels.gpu.plausible_blocks import plausible_rows

CPU, NUM_INPUTS = torch.device("cpu"), 512
SEGMENTS = (Segment("Q4_K", 33), Segment("Q6_K", 8), Segment("Q4_K", 5))


def make_weight(dtype: torch.dtype = torch.float32) -> tuple[PlanesWeight, Tensor]:
    """Returns the weight, whose rows are set in parts that do not end where segments do, and its values."""
    pieces = [plausible_rows(form, num_rows, NUM_INPUTS) for form, num_rows in SEGMENTS]
    weight = PlanesFormat(SEGMENTS).allocate((46, NUM_INPUTS), dtype, CPU)
    first_row = 0
    for rows in pieces:
        for part in (slice(0, 3), slice(3, None)):
            weight.set_rows(first_row + (part.start or 0), rows.part(part, slice(None)))
        first_row += len(rows)
    return weight.finish(), torch.cat([dequantize_blocks(rows) for rows in pieces])


@each_case("activation", [None, "tanh", "exact"])
@each_case("has_bias", [True, False])
@each_case("gives_out", [True, False])
def test_a_linear_layer(activation: GeluKind | None, has_bias: bool, gives_out: bool) -> None:
    weight, values = make_weight()
    generator = torch.Generator().manual_seed(1)
    x_TI, bias = torch.randn(3, NUM_INPUTS, generator=generator), torch.randn(46, generator=generator)
    out_TO = torch.empty(3, 46) if gives_out else None
    got = weight.linear(bias if has_bias else None, activation)(x_TI, out_TO)
    expected = functional.linear(x_TI, values, bias if has_bias else None)
    if activation is not None:
        expected = functional.gelu(expected, approximate="tanh" if activation == "tanh" else "none")
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_ranks_are_summed() -> None:
    weight, values = make_weight()
    x_TI = torch.ones(2, NUM_INPUTS)
    got = weight.row_parallel(None, lambda part: part.mul_(2), 2)(x_TI)
    torch.testing.assert_close(got, 2 * functional.linear(x_TI, values), rtol=1e-5, atol=1e-5)


def test_an_embedding_has_the_dtype_of_activations() -> None:
    rows = plausible_rows("Q8_0", 9, 64)
    weight = PlanesFormat((Segment("Q8_0", 9),)).allocate((9, 64), torch.bfloat16, CPU)
    weight.set_rows(0, rows)
    found = weight.look_up(torch.tensor([8, 0, 8], dtype=torch.int32))
    assert torch.equal(found, dequantize_blocks(rows)[[8, 0, 8]].bfloat16())


def test_rows_that_fill_a_part_are_zero() -> None:
    weight = PlanesFormat((Segment("IQ4_NL", 4),)).allocate((4, 32), torch.float32, CPU)
    weight.set_rows(0, plausible_rows("IQ4_NL", 3, 32))
    assert not bool(weight.look_up(torch.tensor([3])).any())


def test_rows_of_another_form_are_no_part_of_it() -> None:
    weight = PlanesFormat(SEGMENTS).allocate((46, NUM_INPUTS), torch.float32, CPU)
    with pytest.raises(AssertionError):
        weight.set_rows(0, plausible_rows("Q6_K", 2, NUM_INPUTS))


def test_memory_is_about_that_of_the_blocks() -> None:
    for form, limit in (("Q4_0", 1.0), ("Q8_0", 1.0), ("Q4_K", 1.03), ("Q6_K", 1.0), ("MXFP4", 1.06)):
        blocks: BlockRows = plausible_rows(form, 256, 512)
        num_bytes = PlanesFormat((Segment(form, 256),)).num_bytes((256, 512), torch.bfloat16)
        assert num_bytes <= limit * blocks.blocks.nbytes


def test_forms_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    assert find_block_format(SEGMENTS, torch.bfloat16, gpu) == PlanesFormat(SEGMENTS)
    assert find_block_format((*SEGMENTS, Segment("", 3)), torch.bfloat16, gpu) is None
    assert has_planes(SEGMENTS, gpu)
    assert not has_planes((*SEGMENTS, Segment("", 3)), gpu)
    for capability, expected in (((8, 6), False), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, it=capability: it)
        assert planes.has_planes((Segment("F8_32", 3),), gpu) == expected
        assert dispatch.has_fp8(gpu) == expected
