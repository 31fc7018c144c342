import itertools
from typing import Literal

import pytest
import torch
from torch.nn import functional

from kernels.cpu.library import find_kernel
from kernels.operations.gelu import GeluKind
from kernels.operations.packed_linear import (
    allocate_packed,
    has_packed_kernel,
    has_rounding_kernel,
    pack,
    pack_rows,
    packed_linear,
)
from tests.kernels.each_case import each_case

DTYPES = [torch.float32, torch.bfloat16]


def make_case(num_tokens: int, num_inputs: int, num_outputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(num_tokens)
    sizes = (num_tokens, num_inputs), (num_outputs, num_inputs), (num_outputs,)
    return tuple(torch.randn(size, generator=generator).to(dtype) for size in sizes)


@each_case("dtype", DTYPES)
@each_case(("num_inputs", "num_outputs"), [(32, 1), (96, 70), (768, 96)])
@each_case("activation", [None, "tanh"])
def test_it_is_the_product(
    dtype: torch.dtype, num_inputs: int, num_outputs: int, activation: Literal["tanh"] | None
) -> None:
    """With fewer tokens than a tile has rows, as many, more, and several tiles."""
    for num_tokens, has_bias in itertools.product((1, 2, 15, 16, 17, 32, 33, 48, 100), (True, False)):
        x, weight, bias = make_case(num_tokens, num_inputs, num_outputs, dtype)
        added = bias if has_bias else None
        expected = functional.linear(x.double(), weight.double(), None if added is None else added.double())
        if activation:
            expected = functional.gelu(expected, approximate=activation)
        got = packed_linear(x, pack(weight), added, num_outputs, activation)
        assert got.dtype == dtype
        assert float((got.double() - expected).norm() / expected.norm()) < {4: 1e-5, 2: 5e-3}[dtype.itemsize]


@each_case("dtype", DTYPES)
@each_case(("num_tokens", "num_inputs", "num_outputs"), [(70, 64, 33), (70, 13_312, 64), (523, 288, 70)])
def test_a_row_is_the_same_bits_in_any_batch(
    backend: str, num_tokens: int, num_inputs: int, num_outputs: int, dtype: torch.dtype
) -> None:
    """Even if steps are cut into groups of rows, and sums into chunks of inputs."""
    x, weight, bias = make_case(num_tokens, num_inputs, num_outputs, dtype)
    if find_kernel("packed_linear", x.dtype) is None:
        pytest.skip(f"{backend} has no kernel for it")
    packed = pack(weight)
    together = packed_linear(x, packed, bias, num_outputs)
    for begin, end in ((0, 1), (5, 6), (16, 33), (33, 70), (num_tokens - 1, num_tokens)):
        assert torch.equal(packed_linear(x[begin:end], packed, bias, num_outputs), together[begin:end])


@each_case("dtype", DTYPES)
@each_case("activation", [None, "tanh"])
def test_rows_are_the_same_bits_for_every_number_of_them(
    backend: str, dtype: torch.dtype, activation: Literal["tanh"] | None
) -> None:
    x, weight, bias = make_case(70, 96, 165, dtype)
    if find_kernel("packed_linear", x.dtype) is None:
        pytest.skip(f"{backend} has no kernel for it")
    packed = pack(weight)
    together = packed_linear(x, packed, bias, 165, activation)
    for num_tokens in range(1, 70):
        out = torch.full((num_tokens, 165), float("nan"), dtype=dtype)
        assert torch.equal(packed_linear(x[:num_tokens], packed, bias, 165, activation, out), together[:num_tokens])


@each_case("activation", [None, "tanh", "exact"])
def test_weights_in_bfloat16_with_rows_in_float32(backend: str, activation: GeluKind | None) -> None:
    """Only x is rounded: the error is that of sums in float32. Rows have the same bits in any batch."""
    x, weight, bias = make_case(70, 96, 165, torch.float32)
    packed = pack(weight.bfloat16())
    expected = functional.linear(x.bfloat16().double(), weight.bfloat16().double(), bias.double())
    if activation:
        expected = functional.gelu(expected, approximate="tanh" if activation == "tanh" else "none")
    together = packed_linear(x, packed, bias, 165, activation)
    assert together.dtype == torch.float32
    assert float((together.double() - expected).norm() / expected.norm()) < (5e-5 if activation else 1e-6)
    assert has_rounding_kernel(x.device) == (backend in ("avx512", "amx"))
    if not has_rounding_kernel(x.device):
        return
    for num_tokens in range(1, 70):
        out = torch.full((num_tokens, 165), float("nan"))
        assert torch.equal(packed_linear(x[:num_tokens], packed, bias, 165, activation, out), together[:num_tokens])


@each_case("dtype", DTYPES)
@each_case("num_tokens", [20, 50])
def test_what_is_not_a_number_stays_in_its_row(num_tokens: int, dtype: torch.dtype) -> None:
    x, weight, _ = make_case(num_tokens, 64, 40, dtype)
    x[3, 7] = float("nan")
    out = packed_linear(x, pack(weight), None, 40)
    assert out.isnan().any(dim=1).nonzero().flatten().tolist() == [3]


def test_rows_that_are_not_neighbours_in_memory() -> None:
    x, weight, bias = make_case(12, 64, 40, torch.bfloat16)
    packed = pack(weight)
    assert torch.allclose(
        packed_linear(x[::2], packed, bias, 40).float(),
        packed_linear(x[::2].clone(), packed, bias, 40).float(),
        atol=0.1,
    )


@each_case("dtype", DTYPES)
@each_case("stored_as", [torch.bfloat16, torch.float32])
@each_case("is_transposed", [True, False])
@each_case("ends", [(70,), (64, 96), (7, 33, 70), (1, 31, 32, 130)])
def test_a_weight_may_be_packed_in_parts(
    dtype: torch.dtype, stored_as: torch.dtype, is_transposed: bool, ends: tuple[int, ...]
) -> None:
    num_inputs, num_outputs = 160, ends[-1]
    weight = torch.randn(num_outputs, num_inputs, generator=torch.Generator().manual_seed(1)).to(stored_as)
    packed = allocate_packed(num_outputs, num_inputs, dtype)
    for first, end in zip((0, *ends), ends, strict=False):
        part = weight[first:end].T.contiguous().T if is_transposed else weight[first:end]
        pack_rows(packed, first, part)
    rows = packed.transpose(1, 2).reshape(-1, num_inputs)
    assert torch.equal(rows[:num_outputs], weight.to(dtype))
    assert not bool(rows[num_outputs:].any())


def test_float32_and_bfloat16_have_a_kernel(backend: str) -> None:
    for dtype in DTYPES:
        assert has_packed_kernel(torch.zeros(8, 48, dtype=dtype)) == (backend in ("avx2", "avx512", "amx"))
    assert not has_packed_kernel(torch.zeros(8, 48, dtype=torch.float16))
