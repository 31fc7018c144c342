import pytest
import torch

from kernels.formats.embed import embed
from kernels.formats.packed import PackedWeight
from kernels.formats.plain import PlainWeight
from kernels.formats.quantized import QUANTIZED
from kernels.operations.packed_linear import pack
from kernels.operations.quantize import Bits
from tests.kernels.cases import DEVICES
from tests.kernels.each_case import each_case
from tests.kernels.test_formats import values_of


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case("size", [1, 33, 96])
def test_it_is_the_sum_of_two_rows(dtype: torch.dtype, size: int, device: str) -> None:
    tokens, places = (torch.randn(num_rows, size, device=device).to(dtype) for num_rows in (50, 9))
    ids = torch.tensor([49, 0, 7, 7], dtype=torch.int32, device=device)
    positions = torch.tensor([0, 8, 3, 2], dtype=torch.int32, device=device)
    room = torch.full((4, size), float("nan"), dtype=dtype, device=device)
    table = PlainWeight(tokens)
    for out in (None, room):
        assert torch.equal(embed(ids, positions, table, None, out), tokens[ids.long()])
        expected = tokens[ids.long()] + places[positions.long()]
        assert torch.equal(embed(ids, positions, table, places, out), expected)
    assert torch.equal(tokens[7], embed(ids, positions, table, None)[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_table_has_the_same_rows(dtype: torch.dtype) -> None:
    tokens, places = torch.randn(70, 96).to(dtype), torch.randn(9, 96).to(dtype)
    packed = PackedWeight(pack(tokens), *tokens.shape)
    ids = torch.tensor([69, 0, 31, 32, 33, 7], dtype=torch.int32)
    positions = torch.tensor([0, 8, 3, 2, 1, 1], dtype=torch.int32)
    for table in (None, places):
        expected = embed(ids, positions, PlainWeight(tokens), table)
        assert torch.equal(embed(ids, positions, packed, table), expected)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantized_table_has_the_rows_that_its_codes_stand_for(bits: Bits) -> None:
    weight = QUANTIZED[bits].quantize(torch.randn(70, 96))
    ids, nowhere = torch.tensor([69, 0, 31, 32, 33, 7], dtype=torch.int32), torch.zeros(6, dtype=torch.int32)
    assert torch.equal(embed(ids, nowhere, weight, None), values_of(weight)[ids.long()])


def test_no_tokens_are_no_rows() -> None:
    nothing = torch.zeros(0, dtype=torch.int32)
    assert embed(nothing, nothing, PlainWeight(torch.zeros(3, 4)), None).shape == (0, 4)
