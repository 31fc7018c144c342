"""The frames of real requests are kept, with the death of a scheduler among them, and a new ring gives the same."""

import itertools
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from messages.frame_files import FrameReader, find_readers
from messages.replies import DetokenizeMsg, StepReplies
from messages.requests import TokenizeMsg
from tests.ring.client import TIMEOUT_S, RingClient, body

pytestmark = pytest.mark.ring

ROOT = Path(__file__).resolve().parents[2]
TOKENS_BEFORE_DEATH = 60

GREEDY = body("greedy", max_tokens=100, ignore_eos=True)
SAMPLED = body("sampled", max_tokens=150, temperature=1.0, ignore_eos=True)
STOPPED = body("with stop strings", max_tokens=200, temperature=1.0, seed=5, stop=["a", "!!"], ignore_eos=True)
CHOICES = {"prompt": "three of it", "n": 3, "max_tokens": 20, "logprobs": 2, "echo": True, "temperature": 1.0}
REFUSED = {"prompt": "x" * 1000, "max_tokens": 5}


def launch(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "launch.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=4 * TIMEOUT_S, check=False)


@pytest.fixture(scope="module")
def killed_pid(faulty_ring: RingClient) -> int:
    """The scheduler that was killed in the middle of `SAMPLED` and the others."""
    pids: list[int] = []
    restarts: list[int] = []
    num_tokens = itertools.accumulate(itertools.repeat(1))

    def kill_once(num_new: int) -> None:
        if not pids and any(next(num_tokens) >= TOKENS_BEFORE_DEATH for _ in range(num_new)):
            pids.append(faulty_ring.status("scheduler")["pid"])
            restarts.append(faulty_ring.kill("scheduler", signal.SIGKILL))

    got = faulty_ring.generate_all([GREEDY, SAMPLED, STOPPED], kill_once)
    faulty_ring.wait_for_restart("scheduler", restarts[0])
    assert max(one.attempts for one in got) > 1
    reply = httpx.post(f"{faulty_ring.url}/v1/completions", json=CHOICES, timeout=TIMEOUT_S)
    assert len(reply.json()["choices"]) == 3, reply.text
    assert httpx.post(f"{faulty_ring.url}/v1/completions", json=REFUSED, timeout=TIMEOUT_S).status_code == 400
    return pids[0]


def test_the_last_frames_of_a_killed_process_are_kept(faulty_ring: RingClient, killed_pid: int):
    box = faulty_ring.run_dir.black_box
    last = FrameReader(box / f"scheduler.{killed_pid}.frames").read()
    sent = {(record.sender_id, record.number): record.frame for record in last if record.is_sent}
    (sender_id,) = {sender for sender, _ in sent}
    detokenizer = FrameReader(next(box.glob("detokenizer.*.frames"))).read()
    arrived = [record for record in detokenizer if not record.is_sent and record.sender_id == sender_id]
    assert isinstance(arrived[-1].decode(), DetokenizeMsg)
    # What came last to the one behind it is there, and nothing of it was lost before that.
    first = min(number for _, number in sent)
    assert all(sent[sender_id, one.number] == one.frame for one in arrived if one.number >= first)
    assert max(number for _, number in sent) >= arrived[-1].number > TOKENS_BEFORE_DEATH / 3


def uids_of_prompts(faulty_ring: RingClient, *requests: dict[str, Any]) -> list[str]:
    """Returns the uids that the frontend has given to requests with these prompts."""
    prompts = {request["prompt"] for request in requests}
    (frontend,) = (reader for reader in find_readers(faulty_ring.run_dir.black_box) if reader.process == "frontend")
    opened = [record.decode() for record in frontend.read() if record.is_sent]
    return sorted({str(one.uid) for one in opened if isinstance(one, TokenizeMsg) and one.prompt_text in prompts})


def test_recorded_requests_come_again_in_a_new_ring(faulty_ring: RingClient, killed_pid: int):
    uids = uids_of_prompts(faulty_ring, GREEDY, SAMPLED, STOPPED, CHOICES, REFUSED)
    result = launch("replay", str(faulty_ring.run_dir.black_box), "--uid", *uids)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("the same: 7 requests, "), result.stdout
    num_attempts = int(result.stdout.split(", ")[1].split()[0])
    assert num_attempts > 7


def test_frames_are_shown_as_they_are_sent(faulty_ring: RingClient, killed_pid: int):
    result = launch(
        "tail", "detokenizer:frontend", "--no-follow", "--run-dir", str(faulty_ring.run_dir.path), "-n", "3"
    )
    lines = result.stdout.splitlines()
    assert len(lines) == 3, result.stderr
    assert all('"edge":"detokenizer:frontend"' in line and StepReplies.__name__ in line for line in lines)
