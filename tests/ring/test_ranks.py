"""An engine of two ranks, or of three stages, with streams: text stays exact, whichever process dies."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from benchmarks.server_process import ServerProcess
from tests.frontend.frontend_run import wait_until
from tests.ring.client import Generated, RingClient
from tests.ring.conftest import CHEAP, READY_TIMEOUT_S, RESTART_FLAGS, SPECULATIVE
from tests.ring.test_engines import SERVING
from tests.ring.test_kept_cache import MAX_TRIES, PAGE_TOKENS, PROMPT_TOKENS, requests
from tests.ring.test_standby import hurry, maps_of

pytestmark = pytest.mark.ring

__all__ = ["requests"]  # a fixture

RANKS = {"--tensor-parallel": ("rank1", "scheduler"), "--pipeline-parallel": ("rank1", "rank2", "scheduler")}


def find_spares(ring: RingClient, count: int) -> set[int]:
    """Waits for this number of processes that have imported torch and wait to become a rank; returns their pids."""
    launcher, deadline = psutil.Process(psutil.Process(ring.status("frontend")["pid"]).ppid()), time.monotonic() + 120.0
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess):  # a child may end meanwhile
            used = {status["pid"] for status in ring.health()["processes"].values()}
            unused = [child for child in launcher.children() if child.pid not in used]
            spares = [child for child in unused if "--spare" in child.cmdline()]
            for spare in spares:
                hurry(spare.pid)
            # One thread is left: the other one has imported torch.
            if len(spares) == count and all(spare.num_threads() == 1 for spare in spares):
                return {spare.pid for spare in spares}
        time.sleep(0.1)
    raise AssertionError("there are no spares")


def kill_amid_streams(
    ring: RingClient,
    victim: str,
    requests: list[dict[str, Any]],
    undisturbed: list[Generated],
    num_spares: int = 0,
) -> tuple[list[Generated], set[int]]:
    """Kills `victim` during streams, again if all had ended before it died.

    Returns their replies, which have the tokens of the undisturbed ones, and the spares that there were.
    """
    for _ in range(MAX_TRIES):
        spares = find_spares(ring, num_spares) if num_spares else set[int]()
        status = ring.status(victim)  # before the streams, which might end during this request
        got = ring.generate_disturbed(requests, partial(os.kill, status["pid"], signal.SIGKILL))
        assert [(one.text, one.token_ids) for one in got] == [(one.text, one.token_ids) for one in undisturbed]
        ring.wait_for_restart(victim, status["num_restarts"] + 1)
        ring.wait_until_empty()
        if max(one.attempts for one in got) > 1:
            return got, spares
    raise AssertionError(f"{victim} never died in mid-stream")


@pytest.fixture(scope="module", params=RANKS)
def flag(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def ring(flag: str, tiny_checkpoint: Path) -> Iterator[RingClient]:
    """A server with standby processes, as few have in these tests."""
    flags = ("--cpu-threads", "1", *CHEAP, *SPECULATIVE, *RESTART_FLAGS, flag, f"{len(RANKS[flag])}")
    server = ServerProcess(["--model", str(tiny_checkpoint), *flags], has_own_session=True)
    try:
        target = server.wait_until_ready(READY_TIMEOUT_S)
        yield RingClient(f"http://{target.host}:{target.port}", server.run_dir)
    finally:
        assert server.stop() == 0, server.log_text()


def test_streams_continue_exactly_when_any_rank_dies(flag: str, ring: RingClient, requests: list[dict[str, Any]]):
    names = RANKS[flag]
    undisturbed = ring.generate_all(requests)
    for num_deaths, victim in enumerate(names, 1):
        num_spares = len(names) if victim == names[-1] else 0
        got, spares = kill_amid_streams(ring, victim, requests, undisturbed, num_spares)
        # All are back within a second, so frames that they had not received may count as lost, too (decision 0008).
        assert {one.attempts for one in got} <= {1, 2, 3}
        for name in names:
            ring.wait_for_restart(name, num_deaths)
            kept = maps_of(ring.status(name)["pid"])
            assert any("memfd:sluice-weights" in path for path in kept)
            assert any(f"memfd:sluice-{name}.kv-cache" in path for path in kept)
            assert not spares or ring.status(name)["pid"] in spares
        gauges = ring.gauges("scheduler")
        # On a busy machine some streams have ended before the death, or come to the scheduler after it.
        num_continued = sum(one.attempts > 1 for one in got)
        assert gauges["resumed_tokens"] >= num_continued * PROMPT_TOKENS
        assert gauges["recomputed_tokens"] <= gauges["resumed_tokens"] / PROMPT_TOKENS * (PAGE_TOKENS + 1)
    assert ring.gauges("rank1")["steps"] > 0


def test_streams_of_a_dead_stage_move_to_another_engine(
    tiny_checkpoint: Path, start_ring: Any, requests: list[dict[str, Any]]
):
    ring: RingClient = start_ring(tiny_checkpoint, *RESTART_FLAGS, "--pipeline-parallel", "2", "--data-parallel", "2")
    wait_until(lambda: all(ring.status(name)["state"] in SERVING for name in ("scheduler", "scheduler-2")))
    undisturbed = ring.generate_all(requests)
    kill_amid_streams(ring, "rank1", requests, undisturbed)
    assert ring.gauges("scheduler-2")["resumed_tokens"] > 0
    assert ring.status("rank1-2")["num_restarts"] == 0


def test_options_of_requests_give_the_same_texts(ring: RingClient, plain_ring: RingClient):
    """A grammar, penalties, biases, and logprobs, whose last bits differ if ranks add up parts of sums."""
    drawn = {"temperature": 0.8, "seed": 7, "presence_penalty": 0.7, "frequency_penalty": 0.4}
    asked: list[dict[str, Any]] = [
        {"structured_outputs": {"regex": "[a-c]{4}-[0-9]{3}"}, "repetition_penalty": 1.2, **drawn},
        {"temperature": 0.0, "logprobs": 3, "logit_bias": {"70": 9.5}},
        {"temperature": 0.0, "prompt_logprobs": 2, "bad_words": ["a"], "min_p": 0.1},
    ]
    config = ring.run_dir.read_config()
    for fields in asked:
        body = {"model": config.facts.served_names[0], "prompt": "Name a king.", "max_tokens": 16, **fields}
        staged, alone = (httpx.post(f"{one.url}/v1/completions", json=body, timeout=60) for one in (ring, plain_ring))
        assert staged.status_code == 200, staged.text
        (own,), (expected,) = (reply.json()["choices"] for reply in (staged, alone))
        assert own["text"] == expected["text"]
        assert own == expected or config.run.tensor_parallel > 1
        if "structured_outputs" in fields:
            assert re.fullmatch("[a-c]{4}-[0-9]{3}", own["text"])
