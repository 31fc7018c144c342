"""Requests are equal for equal seeds, within bounds, and share the requested prefix."""

import itertools

import msgspec
import numpy as np
import pytest

from benchmarks.load.workloads import (
    LengthRange,
    Lengths,
    PlannedRequest,
    SamplingFields,
    parse_range,
    random_prompts,
    with_poisson_arrivals,
)
from extras.whatif.traces import SPECIAL_IDS
from messages.errors import UsageError

LENGTHS = Lengths(LengthRange(20, 60), LengthRange(3, 9))


def first(num_requests: int, seed: int, num_shared: int = 0, lengths: Lengths = LENGTHS) -> list[PlannedRequest]:
    return list(itertools.islice(random_prompts(2048, lengths, num_shared, seed), num_requests))


def test_the_seed_decides_everything() -> None:
    assert first(50, seed=1) == first(50, seed=1)
    assert first(50, seed=1) != first(50, seed=2)


def test_lengths_and_ids_stay_in_their_ranges_and_reach_both_ends() -> None:
    requests = first(500, seed=0)
    assert {len(request.prompt) for request in requests} == set(range(20, 61))
    assert {request.max_tokens for request in requests} == set(range(3, 10))
    ids = {token_id for request in requests for token_id in request.prompt}
    assert min(ids) >= SPECIAL_IDS
    assert max(ids) == 2047


@pytest.mark.parametrize("num_shared", [0, 12, 100])
def test_a_shared_prefix_is_shared_and_the_rest_is_not(num_shared: int) -> None:
    requests = first(20, seed=0, num_shared=num_shared)
    for one, other in itertools.combinations(requests, 2):
        common = sum(
            1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one.prompt, other.prompt, strict=False))
        )
        assert common >= min(num_shared, len(one.prompt), len(other.prompt))
        assert common <= num_shared + 3, "random tails do not agree for long"
    assert {len(request.prompt) for request in requests} <= set(range(20, 61)), "the prefix is part of the length"


def test_poisson_arrivals_have_the_rate_and_leave_the_requests_alone() -> None:
    plain = first(4000, seed=3)
    timed = list(with_poisson_arrivals(iter(plain), rate=50.0, seed=3))
    assert [(request.prompt, request.max_tokens) for request in timed] == [(r.prompt, r.max_tokens) for r in plain]
    gaps = np.diff([request.at_s for request in timed])
    assert timed[0].at_s == 0.0
    assert gaps.min() > 0
    assert np.mean(gaps) == pytest.approx(1 / 50, rel=0.1)
    assert np.std(gaps) == pytest.approx(1 / 50, rel=0.1), "exponential gaps: as wide as they are long"
    assert timed == list(with_poisson_arrivals(iter(plain), rate=50.0, seed=3))


@pytest.mark.parametrize(("text", "low", "high"), [("128", 128, 128), ("100:1024", 100, 1024)])
def test_ranges(text: str, low: int, high: int) -> None:
    assert parse_range(text) == LengthRange(low, high)


@pytest.mark.parametrize("text", ["", "0", "9:3", "a:b", "-4", "1:2:3"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|is empty"):
        parse_range(text)


def test_lengths_beyond_the_context_are_refused_with_both_numbers() -> None:
    LENGTHS.check(69)
    with pytest.raises(UsageError, match=r"60 and .* 9 make 69 tokens; the server's context is 68"):
        LENGTHS.check(68)


def test_the_body_of_a_request() -> None:
    body = msgspec.json.decode(SamplingFields(0.0, True, "run-1").body(PlannedRequest([5, 6], 7)))
    assert body == {
        "prompt": [5, 6],
        "max_tokens": 7,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "cache_salt": "run-1",
    }
    assert "cache_salt" not in msgspec.json.decode(SamplingFields().body(PlannedRequest("text", 7)))
