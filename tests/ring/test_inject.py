"""`launch.py inject` against real servers, as a person types it."""

import subprocess

import pytest

from benchmarks.server_process import LAUNCH
from tests.ring.client import RingClient, body

pytestmark = pytest.mark.ring


@pytest.fixture(scope="module")
def ring(faulty_ring: RingClient) -> RingClient:
    return faulty_ring


def inject(ring: RingClient, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*LAUNCH, "inject", *arguments, "--run-dir", str(ring.run_dir.path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)


def test_a_killed_process_is_replaced(ring: RingClient):
    num_restarts = ring.status("tokenizer")["num_restarts"] + 1
    done = inject(ring, "kill", "tokenizer")
    assert done.returncode == 0, done.stderr
    assert "SIGKILL" in done.stdout
    ring.wait_for_restart("tokenizer", num_restarts)


def test_a_stopped_process_continues_after_its_time(ring: RingClient):
    status = ring.status("detokenizer")
    done = inject(ring, "stop", "detokenizer", "--seconds", "0.3")
    assert done.returncode == 0, done.stderr
    ring.generate([5, 6, 7], max_tokens=5)
    after = ring.status("detokenizer")
    assert (after["pid"], after["num_restarts"]) == (status["pid"], status["num_restarts"])


def test_a_dropped_frame_is_made_up_for(ring: RingClient):
    (before,) = ring.generate_all([body([5, 6, 7], max_tokens=40)])
    assert inject(ring, "drop", "scheduler>detokenizer", "--frames", "3").returncode == 0
    (after,) = ring.generate_all([body([5, 6, 7], max_tokens=40)])
    assert (after.token_ids, after.text) == (before.token_ids, before.text)


def test_a_step_that_raises_fails_its_row_alone(ring: RingClient):
    assert inject(ring, "poison", "--token-ids", "319,318,319", "--fail").returncode == 0
    with pytest.raises(AssertionError, match="could not compute"):
        ring.generate([5, 319, 318, 319], max_tokens=5)
    ring.generate([5, 6, 7], max_tokens=5)
    assert inject(ring, "clear").returncode == 0
    ring.generate([5, 319, 318, 319], max_tokens=5)


def test_what_cannot_be_done_is_notified(ring: RingClient):
    for arguments, text in (
        (("kill", "tokeniser"), "tokeniser"),
        (("drop", "scheduler"), "FROM:TO"),
        (("drop", "tokenizer:detokenizer"), "only to"),
        (("poison", "--uid", "0"), "--uid or --token-ids"),
    ):
        done = inject(ring, *arguments)
        assert done.returncode != 0
        assert text in done.stdout + done.stderr
