"""A KV cache on disk: the next server finds pages that were evicted, or cached when the server ended."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fork_host import ForkHost
from tests.ring.client import ADMIN_KEY, OPERATOR, TIMEOUT_S, RingClient
from tests.ring.conftest import starting
from tests.ring.model_ring import wait_for

pytestmark = pytest.mark.ring

PROMPTS = [[3 + (number * 31 + place * place) % 240 for place in range(242)] for number in range(2)]
ALL_PAGES = 240
"""Tokens of a prompt in whole pages."""


def metric(ring: RingClient, name: str) -> float:
    lines = httpx.get(f"{ring.url}/metrics", timeout=TIMEOUT_S).text.splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}{{") and 'tier="disk"' in line]
    return float(line.split()[-1])


def wait_for_metric(ring: RingClient, name: str, least: float) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while metric(ring, name) < least:
        assert time.monotonic() < deadline_s, f"{name} is {metric(ring, name)}"
        time.sleep(0.1)


def explain_all(ring: RingClient) -> dict[str, Any] | None:
    """Returns where the pages of the first prompt are, once those that were evicted have been written."""
    question = {"json": {"prompt": PROMPTS[0]}, "headers": OPERATOR, "timeout": TIMEOUT_S}
    explained = httpx.post(f"{ring.url}/cache/explain", **question).json()
    return explained if explained["hit_tokens"] + explained["tier_tokens"]["disk"] == ALL_PAGES else None


def test_pages_on_disk_are_found_after_an_eviction_and_by_the_next_server(
    tiny_checkpoint: Path, tmp_path: Path, fork_host: ForkHost
):
    flags = ("--dtype", "float32", "--num-pages", "17", "--admin-key", ADMIN_KEY)
    disk = ("--kv-disk", str(tmp_path), "--kv-disk-gb", "0.1")
    with starting(fork_host.open) as start:
        ring = start(tiny_checkpoint, *flags, *disk)
        texts: list[str] = []
        for prompt in PROMPTS:
            reply = ring.generate(prompt, max_tokens=6, ignore_eos=True)
            assert reply.usage["cached_tokens"] == 0
            texts.append(reply.text)
        explained = wait_for(partial(explain_all, ring))
        on_disk = explained["tier_tokens"]["disk"]
        assert on_disk >= 13 * 16
        wait_for_metric(ring, "sluice_kv_tier_pages", on_disk // 16)
        assert f"disk has {on_disk} of the next tokens" in explained["text"]
        tree = httpx.get(f"{ring.url}/cache/tree", headers=OPERATOR, timeout=TIMEOUT_S).json()
        assert tree["tier_tokens"]["disk"] >= on_disk
        again = ring.generate(PROMPTS[0], max_tokens=6, ignore_eos=True)
        assert (again.text, again.usage["cached_tokens"]) == (texts[0], ALL_PAGES)
        wait_for_metric(ring, "sluice_kv_tier_hit_pages_total", on_disk // 16)
    with starting(fork_host.open) as start:
        ring = start(tiny_checkpoint, *flags, *disk)
        later = ring.generate(PROMPTS[0], max_tokens=6, ignore_eos=True)
        assert (later.text, later.usage["cached_tokens"]) == (texts[0], ALL_PAGES)
