"""The products of experts, plain and in planes, compared with float64 products of each expert's rows."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from kernels.arguments.block_forms import FORMS
from kernels.arguments.block_rows import BlockRows
from kernels.arguments.routes import Routes, Routing
from kernels.gpu import expert_plain_linear as module
from kernels.operations.dequantize_blocks import dequantize_blocks
from kernels.operations.expert_codes import planes_experts
from kernels.operations.expert_linear import plain_experts
from kernels.operations.experts import combine_experts, gather_rows, route_tokens
from kernels.operations.silu_mul import silu_mul
from tests.kernels.gpu.plausible_blocks import make_planes, plausible_rows

TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Relative to the sum of the magnitudes of a product. The result is rounded once."""

Experts = Callable[[Tensor | None, Tensor, Routes, Tensor | None], Tensor]


def routes_of(counts: list[int], device: str) -> Routes:
    """Returns routes with these numbers of rows of each expert."""
    num_rows = sum(counts)
    rows = torch.arange(num_rows, dtype=torch.int32)
    ends = torch.tensor(counts).cumsum(0).int()
    return Routes(*(part.to(device) for part in (torch.ones(num_rows, 1), rows[:, None], rows, ends)))


def check_products(
    experts: Experts, values_XOI: Tensor, counts: list[int], dtype: torch.dtype, device: str, has_bias: bool = False
) -> None:
    num_experts, num_outputs, num_inputs = values_XOI.shape
    generator = torch.Generator().manual_seed(sum(counts))
    x_RI = torch.randn(sum(counts), num_inputs, generator=generator).to(dtype)
    bias_XO = torch.randn(num_experts, num_outputs, generator=generator).to(dtype) if has_bias else None
    bias_O = None if bias_XO is None else bias_XO.flatten().to(device)
    out_RO = experts(bias_O, x_RI.to(device), routes_of(counts, device), None).cpu().double()
    assert out_RO.shape == (sum(counts), num_outputs)
    ends = [0, *torch.tensor(counts).cumsum(0).tolist()]
    for expert, (begin, end) in enumerate(pairwise(ends)):
        x_NI, values_OI = x_RI[begin:end].double(), values_XOI[expert].double()
        expected, size = x_NI @ values_OI.T, x_NI.abs() @ values_OI.abs().T
        if bias_XO is not None:
            expected, size = expected + bias_XO[expert].double(), size + bias_XO[expert].double().abs()
        assert bool(((out_RO[begin:end] - expected).abs() <= TOLERANCES[dtype] * size + 1e-30).all()), expert


def plain(
    num_experts: int, num_outputs: int, num_inputs: int, dtype: torch.dtype, device: str
) -> tuple[Experts, Tensor]:
    generator = torch.Generator().manual_seed(num_outputs)
    weight_XOI = torch.randn(num_experts, num_outputs, num_inputs, generator=generator).to(dtype)
    return partial(plain_experts, weight_XOI.flatten(0, 1).to(device)), weight_XOI


def in_planes(form: str, num_experts: int, num_outputs: int, num_inputs: int, device: str) -> tuple[Experts, Tensor]:
    rows = plausible_rows(form, num_experts * num_outputs, num_inputs)
    values_OI = dequantize_blocks(rows).view(num_experts, num_outputs, num_inputs)
    return partial(planes_experts, make_planes(BlockRows(rows.blocks.to(device), form, num_inputs))), values_OI


COUNTS = {
    "one row": [0, 0, 1, 0],
    "one expert has all": [0, 20, 0, 0],
    "some": [3, 0, 1, 17],
    "first and last": [16, 0, 0, 33],
    "many": [65, 0, 3, 200],
    "no rows": [0, 0, 0, 0],
}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("counts", COUNTS)
def test_plain(counts: str, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    """Neither rows nor outputs nor inputs fill their blocks."""
    experts, values = plain(4, 70, 144, dtype, device)
    check_products(experts, values, COUNTS[counts], dtype, device, has_bias=counts != "some")
    assert backend["expert_plain_linear"] == 1


@pytest.mark.parametrize("form", FORMS)
def test_every_form_in_planes(form: str, device: str, backend: Counter[str]) -> None:
    experts, values = in_planes(form, 3, 40, FORMS[form].num_values + 256, device)
    check_products(experts, values, [2, 0, 17], torch.bfloat16, device, has_bias=True)
    assert backend["expert_planes_linear"] == 1


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("counts", COUNTS)
def test_planes(counts: str, dtype: torch.dtype, device: str) -> None:
    experts, values = in_planes("Q5_1", 4, 33, 96, device)
    check_products(experts, values, COUNTS[counts], dtype, device, has_bias=counts == "some")


@pytest.mark.parametrize("num_experts", [1, 3, 8])
def test_there_are_tiles_for_any_routes(num_experts: int) -> None:
    generator = torch.Generator().manual_seed(num_experts)
    for num_rows in range(1, 60):
        for block in (1, 2, 16):
            experts = torch.randint(num_experts, (20, num_rows), generator=generator)
            counts = torch.nn.functional.one_hot(experts, num_experts).sum(1)
            needed = (-(-counts // block)).sum(1).max()
            assert int(needed) <= module.count_tiles(num_rows, num_experts, block)
    assert module.count_tiles(64, 1, 16) == 4
    assert module.count_tiles(3, 8, 16) == 3


def expected_mixture(x: Tensor, logits: Tensor, weights: tuple[Tensor, Tensor], num_chosen: int) -> Tensor:
    """Returns what experts compute, token by token in float64."""
    scores, chosen = logits.double().softmax(-1).topk(num_chosen, -1)
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(len(x)):
        for share, expert in zip(scores[token] / scores[token].sum(), chosen[token].tolist(), strict=True):
            gate, up = (weights[0][expert].double() @ x[token].double()).chunk(2)
            out[token] += share * (weights[1][expert].double() @ (torch.nn.functional.silu(gate) * up))
    return out


@pytest.mark.parametrize("num_tokens", [1, 5, 100])
def test_a_mixture_is_that_of_its_definition(num_tokens: int, device: str) -> None:
    """All operations one after another: with few rows for each expert, and with many."""
    num_experts, num_chosen, size, inner = (128, 8, 2048, 768) if device == "cuda" else (6, 3, 64, 48)
    generator = torch.Generator().manual_seed(num_tokens)
    x = torch.randn(num_tokens, size, generator=generator)
    logits = torch.randn(num_tokens, num_experts, generator=generator)
    weights = (
        torch.randn(num_experts, 2 * inner, size, generator=generator) / size**0.5,
        torch.randn(num_experts, size, inner, generator=generator) / inner**0.5,
    )
    into, out = (weight.flatten(0, 1).to(device) for weight in weights)
    routes = route_tokens(logits.to(device), Routing(num_chosen=num_chosen, is_renormalized=True))
    inner_RF = silu_mul(plain_experts(into, None, gather_rows(x.to(device), routes), routes))
    mixed = combine_experts(plain_experts(out, None, inner_RF, routes), routes).cpu().double()
    expected = expected_mixture(x, logits, weights, num_chosen)
    torch.testing.assert_close(mixed, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")
@pytest.mark.parametrize("form", [None, "Q4_K"])
def test_a_captured_graph_follows_the_logits(form: str | None, device: str) -> None:
    """The routes of a replay are others than those at capture."""
    dtype, size, inner, num_experts, num_tokens = torch.bfloat16, 512, 256, 16, 7
    if form is None:
        into, _ = plain(num_experts, 2 * inner, size, dtype, device)
        out, _ = plain(num_experts, size, inner, dtype, device)
    else:
        into, _ = in_planes(form, num_experts, 2 * inner, size, device)
        out, _ = in_planes(form, num_experts, size, inner, device)
    x, logits = (
        torch.randn(num_tokens, size, device=device).to(dtype),
        torch.randn(num_tokens, num_experts, device=device),
    )

    def compute() -> Tensor:
        routes = route_tokens(logits, Routing(num_chosen=4, is_renormalized=True))
        inner_RF = silu_mul(into(None, gather_rows(x, routes), routes, None))
        return combine_experts(out(None, inner_RF, routes, None), routes)

    first = compute()  # compiles
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        compute()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = compute()
    for seed in range(3):
        generator = torch.Generator(device).manual_seed(seed)
        logits.copy_(torch.randn(num_tokens, num_experts, device=device, generator=generator))
        graph.replay()
        expected = compute()
        assert torch.equal(captured, expected)
        assert not torch.equal(expected, first)
