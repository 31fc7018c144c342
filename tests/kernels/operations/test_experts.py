from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.arguments.routes import Routing
from kernels.cpu.capture import capture_calls
from kernels.operations.experts import combine_experts, gather_rows, route_tokens
from tests.kernels.each_case import each_case

ROUTINGS = [
    Routing(num_chosen=2),
    Routing(num_chosen=3, is_renormalized=True),
    Routing(num_chosen=1, is_renormalized=True),
    Routing(num_chosen=5),
]


@each_case("dtype", [torch.float32, torch.bfloat16])
@each_case("routing", ROUTINGS)
def test_routes(routing: Routing, dtype: torch.dtype) -> None:
    """By a loop over tokens, as the definitions say."""
    generator = torch.Generator().manual_seed(routing.num_chosen)
    logits = (2 * torch.randn(11, 7, generator=generator)).to(dtype)
    scales = torch.rand(7, generator=generator) if routing.is_renormalized else None
    routes = route_tokens(logits, routing, scales_X=scales)
    placed: list[tuple[int, int]] = []
    for token, row in enumerate(logits.double()):
        scores = row.softmax(0)
        chosen = sorted(range(7), key=lambda expert, scores=scores: -float(scores[expert]))[: routing.num_chosen]
        shares = scores[chosen] / (scores[chosen].sum() if routing.is_renormalized else 1.0)
        shares = shares if scales is None else shares * scales[chosen]
        torch.testing.assert_close(routes.shares[token].double(), shares, rtol=1e-5, atol=1e-6)
        placed += [(expert, token) for expert in chosen]
    order = sorted(placed)
    assert routes.tokens.tolist() == [token for _, token in order]
    assert routes.ends.tolist() == [sum(expert <= last for expert, _ in order) for last in range(7)]
    assert routes.rows.flatten().tolist() == [order.index(each) for each in placed]


def test_scores_by_sigmoid_and_groups() -> None:
    """Ten tokens one after another, as transformers' DeepseekV3TopkRouter and Ernie4_5_MoeTopKRouter have them."""
    generator = torch.Generator().manual_seed(8)
    logits, bias = torch.randn(10, 12, generator=generator), torch.randn(12, generator=generator) / 2
    options: dict[str, Any] = {"num_chosen": 4, "is_renormalized": True, "scale": 2.5}
    grouped = Routing(**options, score="sigmoid", num_groups=4, num_chosen_groups=2)
    best = replace(grouped, score="softmax", num_best_of_group=1)
    for routing in (grouped, best, Routing(**options, score="sigmoid"), Routing(**options)):
        routes = route_tokens(logits, routing, bias_X=bias)
        experts = torch.bucketize(routes.rows, routes.ends, right=True)
        for row, found, shares in zip(logits, experts, routes.shares, strict=True):
            scores = row.sigmoid() if routing.score == "sigmoid" else row.softmax(0)
            ranks = (scores + bias).tolist()
            groups = range(routing.num_groups)
            size = 12 // len(groups)
            members = [sorted(ranks[group * size : (group + 1) * size]) for group in groups]
            best_sums = [sum(own[-routing.num_best_of_group :]) for own in members]
            kept = sorted(groups, key=lambda group, sums=best_sums: -sums[group])[: routing.num_chosen_groups]
            among = [expert for expert in range(12) if expert // size in kept]
            chosen = sorted(among, key=lambda expert, ranks=ranks: -ranks[expert])[:4]
            assert found.tolist() == chosen
            torch.testing.assert_close(shares, 2.5 * scores[chosen] / scores[chosen].sum())


def test_equal_scores_and_numbers_that_are_not_finite() -> None:
    """Each token goes to different experts, whatever its logits are."""
    logits = torch.zeros(5, 6)
    logits[1], logits[2, 3], logits[3] = torch.nan, torch.inf, -torch.inf
    routes = route_tokens(logits, Routing(num_chosen=4))
    assert int(routes.ends[-1]) == 20
    assert sorted(routes.rows.flatten().tolist()) == list(range(20))
    assert sorted(routes.tokens.tolist()) == sorted(4 * list(range(5)))
    torch.testing.assert_close(routes.shares[0], torch.full((4,), 1 / 6))
    assert bool(routes.shares[1].isnan().all())


@each_case("dtype", [torch.float32, torch.bfloat16])
@each_case("size", [1, 300, 513])
def test_rows_are_gathered_and_combined(size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(size)
    x, out = torch.randn(2, 9, size, generator=generator).to(dtype)
    gates = torch.randn(9, 1, generator=generator).to(dtype)
    routes = route_tokens(torch.randn(9, 5, generator=generator).to(dtype), Routing(num_chosen=3))
    rows = gather_rows(x, routes)
    assert torch.equal(rows, x[routes.tokens])
    total = routes.shares.sum(1, keepdim=True)  # all rows of a token are the same
    tolerance: dict[str, Any] = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(combine_experts(rows, routes), (total * x.float()).to(dtype), **tolerance)
    expected = total * x.float() + gates.float().sigmoid() * out.float()
    there = out.clone()
    combined = combine_experts(rows, routes, there, gates, there)
    torch.testing.assert_close(combined, expected.to(dtype), **tolerance)
    expected = total * x.float() + out.float()
    torch.testing.assert_close(combine_experts(rows, routes, out), expected.to(dtype), **tolerance)


def test_a_captured_step_follows_the_logits(backend: str) -> None:
    if backend == "torch":
        pytest.skip("C kernels are captured")
    logits, x = torch.randn(6, 8), torch.randn(6, 40)

    def compute() -> torch.Tensor:
        routes = route_tokens(logits, Routing(num_chosen=2))
        return combine_experts(gather_rows(x, routes), routes)

    out, calls, _ = capture_calls(compute)
    assert calls is not None
    logits.copy_(torch.randn(6, 8, generator=torch.Generator().manual_seed(3)))
    expected = compute().clone()
    assert not torch.equal(out, expected)
    calls.replay()
    assert torch.equal(out, expected)
