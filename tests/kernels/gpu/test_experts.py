"""Routes, and the sums of what experts compute, compared with plain torch."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.arguments.routes import Routes, Routing
from kernels.operations.experts import (
    combine_experts,
    combine_experts_reference,
    gather_rows,
    route_tokens,
    route_tokens_reference,
)
from tests.kernels.cases import assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUTINGS = {
    "softmax": Routing(num_chosen=2),
    "renormalized": Routing(num_chosen=4, is_renormalized=True),
    "all": Routing(num_chosen=12),
    "sigmoid": Routing(num_chosen=3, score="sigmoid", scale=2.5),
    "groups": Routing(
        num_chosen=4, score="sigmoid", is_renormalized=True, num_groups=4, num_chosen_groups=2, scale=1.5
    ),
    "best of groups": Routing(num_chosen=4, num_groups=4, num_chosen_groups=2, num_best_of_group=1),
    "groups of one": Routing(num_chosen=3, num_groups=12, num_chosen_groups=5),
}


def reference_routes(logits: Tensor, routing: Routing, bias: Tensor | None, scales: Tensor | None = None) -> Routes:
    num_tokens, num_experts = logits.shape
    memory = torch.full((num_experts + 3 * num_tokens * routing.num_chosen,), -1, dtype=torch.int32)
    routes = Routes.take(memory, num_tokens, num_experts, routing.num_chosen)
    route_tokens_reference(logits, routing, bias, scales, routes)
    return routes


def check_routes(routes: Routes, expected: Routes) -> None:
    for name in ("rows", "tokens", "ends"):
        assert getattr(routes, name).tolist() == getattr(expected, name).tolist(), name
    torch.testing.assert_close(routes.shares.cpu(), expected.shares, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ROUTINGS)
def test_routes_are_the_references(name: str, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    """A permutation of numbers as logits: none are equal."""
    generator = torch.Generator().manual_seed(len(name))
    logits = torch.stack([torch.randperm(12, generator=generator) for _ in range(9)]).to(dtype) / 4 - 1
    bias = torch.randn(12, generator=generator) if "group" in name else None
    scales = torch.rand(12, generator=generator) if name == "renormalized" else None
    here = [None if each is None else each.to(device) for each in (bias, scales)]
    routes = route_tokens(logits.to(device), ROUTINGS[name], None, *here)
    check_routes(routes, reference_routes(logits, ROUTINGS[name], bias, scales))
    assert backend["route_tokens"] == 1


def test_equal_scores_and_numbers_that_are_not_finite(device: str) -> None:
    """Each token goes to different experts, whatever its logits are; of equal ones to the first."""
    logits = torch.zeros(5, 6)
    logits[1], logits[2, 3], logits[3] = torch.nan, torch.inf, -torch.inf
    routes = route_tokens(logits.to(device), Routing(num_chosen=4))
    assert sorted(routes.rows.flatten().tolist()) == list(range(20))
    assert sorted(routes.tokens.tolist()) == sorted(4 * list(range(5)))
    ends = [0, *routes.ends.tolist()]
    experts = [sum(int(row) >= end for end in ends[1:]) for row in routes.rows[0]]
    assert experts == [0, 1, 2, 3]
    torch.testing.assert_close(routes.shares[0].cpu(), torch.full((4,), 1 / 6))
    assert bool(routes.shares[1].isnan().all())


@pytest.mark.parametrize(("num_tokens", "num_experts", "num_chosen"), [(0, 4, 2), (1, 1, 1), (1, 128, 8), (700, 5, 2)])
def test_sizes(num_tokens: int, num_experts: int, num_chosen: int, device: str) -> None:
    """700 tokens have more rows than a program places at a time."""
    logits = torch.randn(num_tokens, num_experts, generator=torch.Generator().manual_seed(3))
    routing = Routing(num_chosen=num_chosen, is_renormalized=True)
    check_routes(route_tokens(logits.to(device), routing), reference_routes(logits, routing, None))


def test_routes_lie_in_the_memory_that_is_provided(device: str) -> None:
    memory = torch.full((8 + 3 * 6 + 5,), -7, dtype=torch.int32, device=device)
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(4))
    routes = route_tokens(logits.to(device), Routing(num_chosen=2), memory)
    check_routes(Routes.take(memory.cpu(), 3, 8, 2), reference_routes(logits, Routing(num_chosen=2), None))
    assert routes.ends.data_ptr() == memory[18:].data_ptr()
    assert memory[26:].tolist() == [-7] * 5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 300, 2049])
def test_rows_are_gathered_and_combined(size: int, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    generator = torch.Generator().manual_seed(size)
    x, shared = torch.randn(2, 5, size, generator=generator).to(dtype)
    gates = torch.randn(5, 1, generator=generator).to(dtype)
    routes = route_tokens(torch.randn(5, 7, generator=generator).to(device), Routing(num_chosen=3))
    rows = gather_rows(x.to(device), routes)
    assert torch.equal(rows.cpu(), x[routes.tokens.cpu()])
    here = Routes(*(part.cpu() for part in (routes.shares, routes.rows, routes.tokens, routes.ends)))
    for added in ((None, None), (shared, None), (shared, gates)):
        expected = combine_experts_reference(rows.cpu(), here, *added, None)
        there: list[Any] = [None if each is None else each.to(device) for each in added]
        assert_close(combine_experts(rows, routes, *there).cpu(), expected, dtype)
    assert backend["gather_rows"] == 1
    assert backend["combine_experts"] == 3
