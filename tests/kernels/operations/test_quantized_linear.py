from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.operations.block_linear import STEPS, block_linear, block_linear_reference, unpack
from kernels.operations.quantize import Bits, quantize, quantize_reference, sum_magnitudes
from tests.kernels.each_case import each_case

DTYPES = [torch.float32, torch.bfloat16]
SIZES = [(64, 32), (100, 70), (33, 1), (1100, 33)]


def make_case(num_tokens: int, num_inputs: int, num_outputs: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(num_tokens)
    sizes = (num_tokens, num_inputs), (num_outputs, num_inputs), (num_outputs,)
    return tuple(torch.randn(size, generator=generator).to(dtype) for size in sizes)


def distance(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-6))


@pytest.fixture
def no_clean_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a launcher asks for holds NaN, so that what a kernel does not write is seen."""
    empty = torch.empty

    def poisoned(*sizes: Any, dtype: torch.dtype) -> Tensor:
        return empty(*sizes, dtype=dtype).fill_(float("nan") if dtype.is_floating_point else 255)

    with torch.device("meta"):
        torch.empty(0)  # at the first use torch notes which functions take the device: this one, not `poisoned`
    monkeypatch.setattr(torch, "empty", poisoned)


@each_case("bits", [8, 4])
@pytest.mark.usefixtures("no_clean_memory")
@each_case("dtype", DTYPES)
@each_case(
    ("num_tokens", "num_inputs", "num_outputs"),
    [(1, 64, 32), (1, 1100, 70), (2, 100, 33), (3, 100, 70), (4, 33, 1), (5, 600, 33), (13, 100, 70), (70, 1100, 33)],
)
def test_it_is_the_product(dtype: torch.dtype, num_tokens: int, num_inputs: int, num_outputs: int, bits: Bits) -> None:
    x, weight, bias = make_case(num_tokens, num_inputs, num_outputs, dtype)
    quantized = quantize(weight, bits)
    activations: list[Literal["tanh"] | None] = [None, "tanh"]
    for added, activation in zip((bias, None), activations, strict=True):
        expected = block_linear_reference(x, quantized, added, activation)
        got = block_linear(x, quantized, added, activation)
        assert got.dtype == dtype
        assert got.shape == expected.shape
        assert distance(got, expected) < {4: 1e-3, 2: 5e-3}[dtype.itemsize]


@each_case("bits", [8, 4])
def test_it_is_near_the_product_of_the_real_weight(bits: Bits) -> None:
    x, weight, bias = make_case(20, 512, 70, torch.float32)
    got = block_linear(x, quantize(weight, bits), bias)
    assert distance(got, x @ weight.T + bias) < {8: 0.02, 4: 0.1}[bits]


@each_case("bits", [8, 4])
@each_case(("num_inputs", "num_outputs"), [(64, 33), (1100, 64)])
@each_case("is_behind_gelu", [False, True])
def test_a_row_is_the_same_bits_in_any_batch(
    backend: str, num_inputs: int, num_outputs: int, is_behind_gelu: bool, bits: Bits
) -> None:
    if backend == "torch":
        pytest.skip("torch chooses another order for another number of rows")
    x, weight, bias = make_case(270, num_inputs, num_outputs, torch.bfloat16)
    x = functional.gelu(x) if is_behind_gelu else x
    quantized = quantize(weight, bits)
    together = block_linear(x, quantized, bias)
    each_size_of_tile = ((20, 20 + num_rows) for num_rows in range(1, 16))
    for begin, end in (*each_size_of_tile, (16, 33), (33, 70), (255, 270)):
        assert torch.equal(block_linear(x[begin:end], quantized, bias), together[begin:end])


@each_case("num_tokens", [1, 5, 77])
def test_eight_bits_are_the_same_bits_on_every_processor(backend: str, num_tokens: int) -> None:
    """Sums of the codes are exact. The activations are such that torch finds the same codes; some are far too large for
    8 bits, alone and as neighbours; in two rows, as many codes as possible are too large with their neighbours; others
    have small negative ones and too large positive ones, or the other way round."""
    if backend == "torch":
        pytest.skip("torch multiplies floats")
    generator = torch.Generator().manual_seed(num_tokens)
    x = torch.randint(-9, 10, (num_tokens, 1100), generator=generator).float()
    x[::2, 5::97], x[1::3, 100:104], x[:, 1099] = 700, torch.tensor([90.0, 95, -37, 800]), -5000
    x[1:2] = 3  # codes of STEPS alone
    x[3:5] = 0
    x[3:4, :614], x[4:5, 486:] = 1, -1  # codes of 43
    x[7:60] = x[7:60].clamp(-1) * torch.randint(1, 4, (1100,), generator=generator)
    x[8:60:5] *= -1
    weight = quantize(torch.randn(70, 1100, generator=generator), 8)
    scale_O1 = weight.stored[..., : 2 * 32].contiguous().view(torch.bfloat16).float().view(-1, 1)[:70]
    codes = (unpack(weight) / scale_O1).round().double()
    mean_T1 = x.abs().sum(1, keepdim=True) / 1100
    sums = (x * (STEPS / mean_T1)).round().double() @ codes.T
    assert (x / mean_T1).abs().max() > 100
    assert torch.equal(block_linear(x, weight, None), sums.float() * (scale_O1.T * (mean_T1 / STEPS)))


def test_large_activations_do_not_blur_the_others() -> None:
    x, weight, _ = make_case(40, 512, 70, torch.float32)
    quantized = quantize(weight, 8)
    others = distance(block_linear(x, quantized, None), x @ unpack(quantized).T)
    sizes = (x @ unpack(quantized).T).norm()
    x[:, 77] = 60
    error = (block_linear(x, quantized, None) - x @ unpack(quantized).T).norm() / sizes
    assert float(error) < 1.5 * others  # 60 as code 127 of a token's scale: 9 times


@pytest.mark.usefixtures("no_clean_memory")
@each_case("num_tokens", [1, 6, 40])
def test_parts_of_the_inputs_add_up(backend: str, num_tokens: int) -> None:
    """Ranks make the same codes as one, even if nearly all of a token is in one part, whose inputs are all outliers."""
    x, weight, _ = make_case(num_tokens, 400, 70, torch.float32)
    x[::2, :64] *= 300
    parts = [slice(0, 64), slice(64, 164), slice(164, 400)]
    mean_T = torch.stack([sum_magnitudes(x[:, part].contiguous()) for part in parts]).sum(0) / 400
    assert torch.allclose(mean_T, x.abs().mean(1), rtol=1e-6, atol=0)
    largest_O = weight.abs().amax(1)
    codes = [quantize(weight[:, part].contiguous(), 8, largest_O) for part in parts]
    assert torch.equal(torch.cat([unpack(one) for one in codes], dim=1), unpack(quantize(weight, 8)))
    products = [
        block_linear(x[:, part].contiguous(), one, None, mean_T=mean_T) for part, one in zip(parts, codes, strict=True)
    ]
    assert distance(torch.stack(products).sum(0), block_linear(x, quantize(weight, 8), None)) < 1e-5
    assert backend == "torch" or torch.equal(sum_magnitudes(x[-1:]), sum_magnitudes(x)[-1:])


@each_case("bits", [8, 4])
@each_case("bad", [float("nan"), float("inf"), float("-inf")])
@each_case("num_tokens", [9, 40])
def test_what_is_not_finite_stays_in_its_row(bad: float, num_tokens: int, bits: Bits) -> None:
    x, weight, _ = make_case(num_tokens, 100, 40, torch.bfloat16)
    x[3, 77] = bad
    out = block_linear(x, quantize(weight, bits), None)
    assert out.isnan().any(dim=1).nonzero().flatten().tolist() == [3]


@each_case("bits", [8, 4])
def test_zeros_and_tiny_numbers(bits: Bits) -> None:
    x, weight, bias = make_case(3, 100, 40, torch.float32)
    x[0], x[1] = 0, 1e-38
    weight[:7] = 0
    out = block_linear(x, quantize(weight, bits), bias)
    torch.testing.assert_close(out[:2], bias.expand(2, -1))
    assert torch.equal(out[2, :7], bias[:7])


def test_rows_that_are_not_neighbours_in_memory() -> None:
    x, weight, bias = make_case(12, 64, 40, torch.float32)
    quantized = quantize(weight, 8)
    assert distance(block_linear(x[::2], quantized, bias), block_linear(x[::2].clone(), quantized, bias)) < 1e-3


@each_case("bits", [8, 4])
@each_case("dtype", DTYPES)
def test_a_weight_is_near_itself(dtype: torch.dtype, bits: Bits) -> None:
    _, weight, _ = make_case(1, 100, 70, dtype)
    near = unpack(quantize(weight, bits))
    assert near.shape == weight.shape
    largest = weight.float().abs().max()
    # With 8 bits a step is the largest of a row over 127. With 4 bits it is the largest of a group over 8: half of it
    # is lost, or all where the largest has no counterpart.
    assert float((near - weight.float()).abs().max()) <= float(largest) / {8: 240, 4: 7.5}[bits]


@each_case("bits", [8, 4])
def test_codes_come_back(bits: Bits) -> None:
    """Every code at every place, with a scale of 1 that the largest fixes."""
    least, largest = {8: (-127, 127), 4: (-8, 7)}[bits]
    weight = torch.randint(least, largest + 1, (70, 128), generator=torch.Generator().manual_seed(0)).float()
    weight[:, ::32] = 127 if bits == 8 else -8
    assert torch.equal(unpack(quantize(weight, bits)), weight)


def test_memory_is_that_of_the_codes_and_a_scale_for_each_output() -> None:
    assert quantize(torch.zeros(3, 5), 8).stored.shape == (1, 1, 64 + 32 * 64)
    weight = torch.randn(64, 1024)
    assert quantize(weight, 4).stored.nbytes / weight.numel() * 8 == 4.5


@each_case("bits", [8, 4])
@pytest.mark.usefixtures("no_clean_memory")
@each_case("dtype", DTYPES)
@each_case(("num_inputs", "num_outputs"), SIZES)
def test_every_backend_makes_the_same_codes(dtype: torch.dtype, num_inputs: int, num_outputs: int, bits: Bits) -> None:
    _, weight, _ = make_case(1, num_inputs, num_outputs, dtype)
    weight[0] = 0
    assert torch.equal(quantize(weight, bits).stored, quantize_reference(weight, bits, None))
