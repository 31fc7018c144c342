"""A scheduler is killed under long streams: the next one keeps its undamaged pages, and text stays exact."""

import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from extras.faults.messages import DamagePages
from messages.control.admin import Acknowledged
from tests.ring.client import Generated, RingClient, body

pytestmark = pytest.mark.ring

NUM_STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS = 6, 130, 110
PAGE_TOKENS = 16
MAX_TRIES = 8


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    rng = random.Random(11)
    return [
        body(
            [rng.randrange(3, 250) for _ in range(PROMPT_TOKENS)],
            max_tokens=OUTPUT_TOKENS,
            ignore_eos=True,
            temperature=0.9 * (index % 2),
            seed=index,
            cache_salt="mine" if index % 3 == 2 else "theirs",
        )
        for index in range(NUM_STREAMS)
    ]


@pytest.fixture(scope="module")
def undisturbed(faulty_ring: RingClient, requests: list[dict[str, Any]]) -> list[Generated]:
    return faulty_ring.generate_all(requests)


def disturb(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated], harm: Callable[[], object]
) -> int:
    """Ends the scheduler in mid-stream by `harm`; retries if that came too late.

    Returns how many times requests continued: on a busy machine, a request may lose a frame too, and continue twice.
    """
    for _ in range(MAX_TRIES):
        ring.wait_until_empty()
        assert httpx.post(f"{ring.url}/flush_cache", json={}).status_code == 200
        num_restarts = ring.status("scheduler")["num_restarts"] + 1
        got = ring.generate_disturbed(requests, harm)
        assert [(one.text, one.token_ids) for one in got] == [(one.text, one.token_ids) for one in undisturbed]
        ring.wait_for_restart("scheduler", num_restarts)
        ring.wait_until_empty()
        if min(one.attempts for one in got) > 1:
            return sum(one.attempts - 1 for one in got)
    raise AssertionError("the scheduler never died in mid-stream")


def test_only_what_is_in_no_full_page_is_computed_again(
    faulty_ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    num_continued = disturb(faulty_ring, requests, undisturbed, lambda: faulty_ring.kill("scheduler"))
    gauges = faulty_ring.gauges("scheduler")
    assert gauges["resumed_tokens"] >= NUM_STREAMS * (PROMPT_TOKENS + 1)
    assert gauges["recomputed_tokens"] <= num_continued * (PAGE_TOKENS + 1)
    assert gauges["pages_recovered"] >= NUM_STREAMS * (PROMPT_TOKENS // PAGE_TOKENS)
    assert gauges["pages_dropped"] == 0
    metrics = httpx.get(f"{faulty_ring.url}/metrics").text
    resumed = [line for line in metrics.splitlines() if line.startswith("sluice_resumed_tokens_total")]
    assert float(resumed[0].split()[-1]) >= gauges["resumed_tokens"]


def test_pages_that_were_damaged_are_computed_again(
    faulty_ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    def damage() -> None:
        assert isinstance(faulty_ring.instruct("scheduler", DamagePages(3)), Acknowledged)

    disturb(faulty_ring, requests, undisturbed, damage)
    gauges = faulty_ring.gauges("scheduler")
    assert gauges["pages_dropped"] >= 3
    assert gauges["recomputed_tokens"] >= PAGE_TOKENS
