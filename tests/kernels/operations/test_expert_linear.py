"""Each expert's outputs against those of the dense layer with its part of the weight."""

import itertools

import pytest
import torch
from torch import Tensor

from kernels.arguments.block_rows import Segment
from kernels.arguments.routes import Routes, Routing
from kernels.cpu.capture import capture_calls
from kernels.formats.packed import PACKED
from kernels.formats.packed_blocks import PackedBlocksFormat
from kernels.formats.plain import PlainWeight
from kernels.formats.quantized import QUANTIZED
from kernels.formats.weight_format import Weight
from kernels.operations.experts import route_tokens
from kernels.operations.quantize import sum_magnitudes
from tests.kernels.each_case import each_case
from tests.kernels.gpu.plausible_blocks import plausible_rows
from tests.naming import naming

NUM_EXPERTS, NUM_OUTPUTS, NUM_INPUTS = 5, 96, 256
CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]


def make_weights(name: str, dtype: torch.dtype) -> tuple[Weight, list[Weight]]:
    """Returns the weight of all experts, and that of each."""
    num_rows = NUM_EXPERTS * NUM_OUTPUTS
    values = torch.randn(num_rows, NUM_INPUTS, generator=torch.Generator().manual_seed(7)).to(dtype)
    parts = values.split(NUM_OUTPUTS)
    match name:
        case "plain":
            return PlainWeight(values), [PlainWeight(part) for part in parts]
        case "packed":
            weights = [PACKED.allocate(tuple(each.shape), dtype, CPU) for each in (values, *parts)]
            for weight, rows in zip(weights, (values, *parts), strict=True):
                weight.set_rows(0, rows)
            return weights[0], list(weights[1:])
        case "int8" | "int4":
            quantize = QUANTIZED[8 if name == "int8" else 4].quantize
            return quantize(values), [quantize(part) for part in parts]
        case form:
            blocks = plausible_rows(form, num_rows, NUM_INPUTS)
            whole = PackedBlocksFormat([Segment(form, num_rows)]).allocate((num_rows, NUM_INPUTS), dtype, CPU)
            whole.set_rows(0, blocks)
            alone = PackedBlocksFormat([Segment(form, NUM_OUTPUTS)])
            each = [alone.allocate((NUM_OUTPUTS, NUM_INPUTS), dtype, CPU) for _ in range(NUM_EXPERTS)]
            for expert, weight in enumerate(each):
                rows = slice(expert * NUM_OUTPUTS, (expert + 1) * NUM_OUTPUTS)
                weight.set_rows(0, blocks.part(rows, slice(None)))
            return whole, list(each)


@pytest.fixture(params=["plain", "packed", "int8", "int4", "Q4_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4"])
def form(request: pytest.FixtureRequest, backend: str) -> str:
    if backend == "torch" and request.param not in ("plain", "packed", "int8", "int4"):
        pytest.skip("blocks are packed by C kernels alone")
    if backend == "portable" and request.param == "packed":
        pytest.skip("the kernel needs AVX2")
    return request.param


def make_routes(num_tokens: int, seed: int = 0) -> Routes:
    """The expert 3 has no tokens."""
    logits = torch.randn(num_tokens, NUM_EXPERTS, generator=torch.Generator().manual_seed(seed))
    logits[:, 3] = -100.0
    return route_tokens(logits, Routing(num_chosen=2))


def make_rows(num_rows: int, dtype: torch.dtype) -> Tensor:
    x = torch.randn(num_rows, NUM_INPUTS, generator=torch.Generator().manual_seed(num_rows))
    x[::5, 9] *= 40.0  # outliers
    return x.to(dtype)


@each_case("dtype", DTYPES)
def test_rows_have_the_outputs_of_their_experts(form: str, dtype: torch.dtype) -> None:
    weights = make_weights(form, dtype)
    for num_tokens, has_bias in itertools.product([1, 3, 20, 150], [False, True]):
        with naming(num_tokens=num_tokens, has_bias=has_bias):
            check_outputs(form, weights, num_tokens, dtype, has_bias=has_bias)


def check_outputs(
    form: str, weights: tuple[Weight, list[Weight]], num_tokens: int, dtype: torch.dtype, *, has_bias: bool
) -> None:
    whole, each = weights
    routes, x = make_routes(num_tokens), make_rows(2 * num_tokens, dtype)
    biases = make_rows(NUM_EXPERTS, dtype)[:, :NUM_OUTPUTS].contiguous() if has_bias else None
    layer = whole.experts(None if biases is None else biases.flatten())
    out = layer(x, routes, torch.full((2 * num_tokens, NUM_OUTPUTS), torch.nan, dtype=dtype))
    begin = 0
    for expert, (weight, end) in enumerate(zip(each, routes.ends.tolist(), strict=True)):
        if begin < end:
            expected = weight.linear(None if biases is None else biases[expert], None)(x[begin:end])
            if form in ("plain", "packed"):
                torch.testing.assert_close(out[begin:end], expected, rtol=2e-2, atol=2e-2)
            else:
                assert torch.equal(out[begin:end], expected)
        begin = end


class SumOfRanks:
    """Stands in for two ranks, whose parts add up to `total`."""

    size = 2

    def __init__(self, total: Tensor):
        self._total = total

    def all_reduce(self, part_TE: Tensor, /) -> Tensor:
        return part_TE.copy_(self._total)


def test_ranks_with_a_part_of_the_inputs_have_the_codes_of_one(backend: str) -> None:
    """One half of the inputs is far larger, so the ranks' own scales would be others."""
    values = torch.randn(NUM_EXPERTS * NUM_OUTPUTS, NUM_INPUTS, generator=torch.Generator().manual_seed(7))
    x, routes, quantize = make_rows(40, torch.float32), make_routes(20), QUANTIZED[8].quantize
    x[:, :128] *= 30.0
    expected = quantize(values).experts(None)(x, routes, None)
    ranks, largest_O, total = SumOfRanks(sum_magnitudes(x)), values.abs().amax(1), torch.zeros_like(expected)
    for half in (slice(128), slice(128, None)):
        layer = quantize(values[:, half].contiguous(), largest_O).experts(None, ranks)
        total += layer(x[:, half].contiguous(), routes, None)
    torch.testing.assert_close(total, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@each_case("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone_and_in_a_batch(form: str, backend: str, dtype: torch.dtype) -> None:
    if backend == "torch":
        pytest.skip("of C kernels")
    layer = make_weights(form, dtype)[0].experts(None)
    if form == "plain":
        pytest.skip("torch computes it")
    routes, x = make_routes(75), make_rows(150, dtype)
    together = layer(x, routes, None)
    for row in (0, 37, 149):
        expert = int((routes.ends <= row).sum())
        ends = (torch.arange(NUM_EXPERTS) >= expert).int()
        alone = Routes(routes.shares, routes.rows, routes.tokens, ends)
        assert torch.equal(layer(x[row : row + 1].clone(), alone, None)[0], together[row])


def test_a_captured_step_follows_the_routes(form: str, backend: str) -> None:
    if backend == "torch" or form == "plain":
        pytest.skip("C kernels are captured")
    layer, x, routes = make_weights(form, torch.float32)[0].experts(None), make_rows(16, torch.float32), make_routes(8)
    out, calls, _ = capture_calls(lambda: layer(x, routes, None))
    assert calls is not None
    other = make_routes(8, seed=5)
    assert not torch.equal(other.ends, routes.ends)
    routes.ends.copy_(other.ends)
    expected = layer(x, routes, None).clone()
    calls.replay()
    assert torch.equal(out, expected)
