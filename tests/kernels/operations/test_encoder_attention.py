import pytest
import torch
from torch.nn import functional

from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case
from tests.kernels.encoder_cases import LENS, NUM_SINGLE, SHAPES, EncoderShape, expected, make_heads, run, split


@pytest.mark.parametrize("device", DEVICES)
@each_case("shape", SHAPES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_dense_attention(shape: EncoderShape, dtype: torch.dtype, device: str) -> None:
    heads, bias = make_heads(shape, dtype)
    assert_close(run(heads, bias, shape, NUM_SINGLE, LENS), expected(heads, bias, shape), dtype)


@each_case("shape", SHAPES)
def test_the_reference_equals_torch(shape: EncoderShape) -> None:
    heads, bias = make_heads(shape, torch.float32)
    first, num_tokens = NUM_SINGLE + sum(LENS[:-1]), LENS[-1]
    parts = (part[first:].transpose(0, 1)[None] for part in split(heads, shape))
    distance = torch.arange(num_tokens) - torch.arange(num_tokens)[:, None]
    mask = torch.zeros(shape.num_heads, num_tokens, num_tokens)
    if bias is not None:
        mask += bias[:, distance.clamp(-shape.reach, shape.reach) + shape.reach]
    if shape.window is not None:
        mask = mask.masked_fill(distance.abs() >= shape.window, float("-inf"))
    dense = functional.scaled_dot_product_attention(*parts, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)
    assert_close(expected(heads, bias, shape)[first:], dense, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
@each_case("shape", SHAPES[:5:2])
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_bits_alone(shape: EncoderShape, dtype: torch.dtype, device: str) -> None:
    heads, bias = make_heads(shape, dtype)
    together, first = run(heads, bias, shape, NUM_SINGLE, LENS), NUM_SINGLE
    for num_tokens in LENS:
        row = slice(first, first + num_tokens)
        assert torch.equal(run(heads[row], bias, shape, 0, (num_tokens,)), together[row])
        first += num_tokens
