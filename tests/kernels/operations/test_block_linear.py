import itertools
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from kernels.arguments.block_forms import FORMS as FILE_SIZES
from kernels.arguments.block_forms import INTEGER_FORMS
from kernels.arguments.block_rows import BlockRows
from kernels.arguments.packed_blocks import PackedBlocks, packed_bytes
from kernels.arguments.packed_forms import FORMS
from kernels.cpu.capture import capture_calls
from kernels.operations.block_linear import (
    block_linear,
    block_linear_reference,
    look_up_rows,
    pack_block_rows,
    unpack,
)
from kernels.operations.dequantize_blocks import dequantize_blocks
from tests.kernels.each_case import each_case
from tests.kernels.gpu.plausible_blocks import plausible_rows
from tests.kernels.operations.block_forms import GOLDEN, random_blocks

FILE_FORMS = [name for name in FORMS if name in FILE_SIZES]
DTYPES = [torch.float32, torch.bfloat16]
MIXTURES = [(("Q4_K", 70), ("Q6_K", 33)), (("Q5_0", 1), ("Q8_0", 64), ("IQ4_NL", 40)), (("Q4_1", 100),)]


@pytest.fixture(autouse=True)
def skip_without_kernel(backend: str) -> None:
    if backend == "torch":
        pytest.skip("blocks are packed by C kernels alone")


def pack(segments: tuple[BlockRows, ...]) -> PackedBlocks:
    """Packs each segment in three calls, the last rows first; memory that is not written to holds 255."""
    names, num_inputs = tuple((rows.form, len(rows)) for rows in segments), segments[0].num_inputs
    weight = PackedBlocks(torch.full((packed_bytes(names, num_inputs),), 255, dtype=torch.uint8), names, num_inputs)
    for index, rows in enumerate(segments):
        borders = (0, len(rows) // 5, len(rows) // 2, len(rows))
        for begin, end in reversed(list(itertools.pairwise(borders))):
            pack_block_rows(weight, index, begin, rows.blocks[begin:end].contiguous())
    return weight


def make_weight(segments: tuple[tuple[str, int], ...], num_inputs: int) -> PackedBlocks:
    return pack(tuple(plausible_rows(form, num_outputs, num_inputs) for form, num_outputs in segments))


def make_rows(num_tokens: int, num_inputs: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(num_tokens, num_inputs, generator=torch.Generator().manual_seed(num_tokens)).to(dtype)


def distance(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-6))


def assert_same_bits(values: Tensor, expected: Tensor) -> None:
    assert torch.equal(values.view(torch.int32), expected.contiguous().view(torch.int32))


@each_case("form", FILE_FORMS)
def test_packed_blocks_hold_the_values_of_the_file(form: str) -> None:
    rows = BlockRows(random_blocks(form, 70, 512, seed=3), form, 512)
    if form in INTEGER_FORMS:  # scales of checkpoints have 11 bits at most: then a code's product with them is exact
        units = rows.blocks.view(-1, FILE_SIZES[form].num_bytes)
        units[:, :4] = torch.randn(len(units), 1).half().float().view(torch.uint8)
    weight = pack((rows, rows.part(slice(20, 53), slice(0, 512))))
    expected = dequantize_blocks(rows)
    expected = torch.cat((expected, expected[20:53]))
    assert_same_bits(unpack(weight), expected)
    row_T = torch.tensor([102, 0, 69, 70, 33])
    assert_same_bits(look_up_rows(weight, row_T), expected[row_T])
    assert torch.equal(look_up_rows(weight, row_T, torch.bfloat16), expected[row_T].bfloat16())


@each_case("form", [form for form in FILE_FORMS if form in load_file(GOLDEN)])
def test_packed_blocks_hold_the_values_of_the_gguf_package(form: str) -> None:
    golden = load_file(GOLDEN)
    assert_same_bits(unpack(pack((BlockRows(golden[form], form, 256),))), golden[f"{form} values"])


@each_case("form", FILE_FORMS)
@each_case("dtype", DTYPES)
def test_it_is_the_product(form: str, dtype: torch.dtype) -> None:
    weight, bias = make_weight(((form, 70),), 768), make_rows(70, 1, dtype).flatten()
    activations: list[Literal["tanh"] | None] = [None, "tanh"]
    for num_tokens in (1, 2, 3, 4, 5, 14, 40):
        x = make_rows(num_tokens, 768, dtype)
        for added, activation in zip((bias, None), activations, strict=True):
            expected = block_linear_reference(x, weight, added, activation)
            room = torch.full_like(expected, float("nan"))
            for got in (block_linear(x, weight, added, activation), block_linear(x, weight, added, activation, room)):
                assert got.dtype == dtype
                assert distance(got, expected) < {4: 1e-3, 2: 5e-3}[dtype.itemsize]


@each_case("segments", MIXTURES)
def test_segments_of_several_forms_are_one_weight(segments: tuple[tuple[str, int], ...]) -> None:
    weight = make_weight(segments, 512)
    for num_tokens in (1, 30):
        x = make_rows(num_tokens, 512, torch.float32)
        parts = [block_linear(x, make_weight((segment,), 512), None) for segment in segments]
        assert torch.equal(block_linear(x, weight, None), torch.cat(parts, dim=1))


@each_case("form", FILE_FORMS)
def test_a_row_is_the_same_bits_in_any_batch(form: str) -> None:
    weight, x = make_weight(((form, 33),), 768), make_rows(270, 768, torch.bfloat16)
    together = block_linear(x, weight, None)
    each_size_of_tile = ((20, 20 + num_rows) for num_rows in range(1, 8))
    for begin, end in (*each_size_of_tile, (16, 30), (33, 70), (255, 270)):
        assert torch.equal(block_linear(x[begin:end], weight, None), together[begin:end])


@each_case("num_rows", [257, 258, 300, 511, 512, 513, 514, 769, 1023, 2050])
def test_rows_of_several_items(num_rows: int) -> None:
    """Items have at most 256 rows, in whole tiles."""
    weight, x = make_weight((("Q5_0", 33),), 64), make_rows(num_rows, 64, torch.bfloat16)
    together = block_linear(x, weight, None)
    for begin in range(0, num_rows, 250):
        assert torch.equal(block_linear(x[begin : begin + 250], weight, None), together[begin : begin + 250])


@each_case("form", ["Q4_0", "Q4_K", "Q6_K", "Q8_0"])
@each_case("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_in_its_row(form: str, bad: float) -> None:
    weight = make_weight(((form, 40),), 256)
    for num_tokens in (4, 40):
        x = make_rows(num_tokens, 256, torch.bfloat16)
        x[3, 77] = bad
        assert block_linear(x, weight, None).isnan().all(dim=1).nonzero().flatten().tolist() == [3]


def test_zeros_and_tiny_numbers() -> None:
    x = torch.tensor([[0.0], [1e-38]]).expand(2, 256)
    for form in ("Q4_1", "Q6_K"):
        assert not block_linear(x, make_weight(((form, 40),), 256), None).any()


def test_the_largest_codes_do_not_overflow() -> None:
    """Each code is the largest, or the smallest, and each activation has the code 127 or -127."""
    for form in FILE_FORMS:
        blocks = plausible_rows(form, 32, 256)
        for byte in (0, 255):
            rows = BlockRows(torch.full_like(blocks.blocks, byte), form, 256)
            units = rows.blocks.view(32 * 256 // FILE_SIZES[form].num_values, -1)
            for begin in FILE_SIZES[form].halves or (0, 2):
                units[:, begin : begin + 2] = torch.tensor([0, 0x3C], dtype=torch.uint8)  # 1
            if form == "MXFP4":
                units[:, 0] = 120
            weight = pack((rows,))
            for sign in (1, -1):
                x = torch.full((6, 256), 2.0 * sign)
                assert distance(block_linear(x, weight, None), x @ unpack(weight).T) < 1e-5


def test_calls_can_be_captured() -> None:
    weight = make_weight(MIXTURES[0], 512)
    x, ids = make_rows(3, 512, torch.bfloat16), torch.tensor([5, 100], dtype=torch.int32)
    out, calls, other = capture_calls(lambda: (block_linear(x, weight, None), look_up_rows(weight, ids)))
    assert other is None
    assert calls is not None
    x.neg_()
    ids.copy_(torch.tensor([69, 70]))
    calls.replay()
    assert torch.equal(out[0], block_linear(x, weight, None))
    assert torch.equal(out[1], unpack(weight)[69:71])


@each_case("form", FILE_FORMS)
def test_packed_blocks_are_about_as_large_as_the_file(form: str) -> None:
    rows = plausible_rows(form, 64, 1024)
    codes = FILE_SIZES[form].codes
    num_bits = codes.low.num_bits + (0 if codes.high is None else codes.high.num_bits)
    most = 1.03 if num_bits >= 4 else 4.2 / num_bits  # codes take 4 bits at least
    assert packed_bytes(((form, 64),), 1024) <= most * rows.blocks.nbytes


def test_every_exponent_of_mxfp4() -> None:
    """The two smallest are subnormal; 255 stands for none and is refused at load."""
    blocks = torch.full((255, 17), 0x11, dtype=torch.uint8)  # all codes are 1, the number 0.5
    blocks[:, 0] = torch.arange(255, dtype=torch.uint8)
    weight = pack((BlockRows(blocks, "MXFP4", 32),))
    x = torch.zeros(1, 32)
    x[0, 7] = 1.0
    expected = [2.0 ** (exponent - 128) for exponent in range(255)]
    assert block_linear(x, weight, None)[0].tolist() == pytest.approx(expected, rel=1e-6, abs=0.0)
