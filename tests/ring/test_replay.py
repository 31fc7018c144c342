"""The frames of real requests are recorded, including the death of a scheduler, and a new ring gives the same."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from messages.frame_files import FrameReader, find_readers
from messages.ring.replies import DetokenizeMsg, StepReplies
from messages.ring.requests import TokenizeMsg
from tests.ring.client import TIMEOUT_S, RingClient, body

pytestmark = pytest.mark.ring

ROOT = Path(__file__).resolve().parents[2]
TOKENS_BEFORE_DEATH = 20
MAX_TRIES = 5

GREEDY = body("greedy", max_tokens=200, ignore_eos=True)
SAMPLED = body("sampled", max_tokens=200, temperature=1.0, ignore_eos=True)
STOPPED = body("with stop strings", max_tokens=200, temperature=1.0, seed=5, stop=["a", "!!"], ignore_eos=True)
CHOICES = {"prompt": "three of it", "n": 3, "max_tokens": 20, "logprobs": 2, "echo": True, "temperature": 1.0}
REFUSED = {"prompt": "x" * 1000, "max_tokens": 5}


def launch(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "launch.py"), *words]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=4 * TIMEOUT_S,
        check=False,
        start_new_session=True,  # see `ServerProcess`
    )


@pytest.fixture(scope="module")
def killed_pid(faulty_ring: RingClient) -> int:
    """The scheduler that was killed during `SAMPLED` and the others."""
    pid = 0
    for _ in range(MAX_TRIES):  # a slow client may see its first tokens only at the end
        pid, num_attempts = kill_in_the_middle(faulty_ring)
        if num_attempts > 1:
            break
    else:
        pytest.fail(f"in {MAX_TRIES} tries the scheduler was killed when it had nothing more to do")
    reply = httpx.post(f"{faulty_ring.url}/v1/completions", json=CHOICES, timeout=TIMEOUT_S)
    assert len(reply.json()["choices"]) == 3, reply.text
    assert httpx.post(f"{faulty_ring.url}/v1/completions", json=REFUSED, timeout=TIMEOUT_S).status_code == 400
    return pid


def kill_in_the_middle(faulty_ring: RingClient) -> tuple[int, int]:
    """Returns the pid of the scheduler that was killed at the first tokens, and the most attempts of a request."""
    pid = faulty_ring.status("scheduler")["pid"]
    num_tokens = 0
    restarts: list[int] = []

    def kill_once(num_new: int) -> None:
        nonlocal num_tokens
        num_tokens += num_new
        if num_tokens >= TOKENS_BEFORE_DEATH and not restarts:
            restarts.append(faulty_ring.kill("scheduler", signal.SIGKILL))

    got = faulty_ring.generate_all([GREEDY, SAMPLED, STOPPED], kill_once)
    faulty_ring.wait_for_restart("scheduler", restarts[0])
    return pid, max(one.attempts for one in got)


def test_the_last_frames_of_a_killed_process_are_kept(faulty_ring: RingClient, killed_pid: int):
    box = faulty_ring.run_dir.black_box
    last = FrameReader(box / f"scheduler.{killed_pid}.frames").read()
    sent = {(record.sender_id, record.number): record.frame for record in last if record.is_sent}
    (sender_id,) = {sender for sender, _ in sent}
    detokenizer = FrameReader(box / f"detokenizer.{faulty_ring.status('detokenizer')['pid']}.frames").read()
    arrived = [record for record in detokenizer if not record.is_sent and record.sender_id == sender_id]
    assert isinstance(arrived[-1].decode(), DetokenizeMsg)
    # The last frame to the next process is there, and none before it was lost.
    first = min(number for _, number in sent)
    latest = arrived[-10:]  # other modules damage frames
    assert all(sent[sender_id, one.number] == one.frame for one in latest if one.number >= first)
    assert max(number for _, number in sent) >= arrived[-1].number > TOKENS_BEFORE_DEATH / 4


def uids_of_prompts(faulty_ring: RingClient, *requests: dict[str, Any]) -> list[str]:
    """Returns the uids that the frontend has given to requests with these prompts."""
    prompts = {request["prompt"] for request in requests}
    (frontend,) = (reader for reader in find_readers(faulty_ring.run_dir.black_box) if reader.process == "frontend")
    sent = [record.decode() for record in frontend.read() if record.is_sent]
    opened = [one for message in sent if isinstance(message, TokenizeMsg) for one in message.each()]
    return sorted({str(one.uid) for one in opened if one.prompt_text in prompts})


def test_recorded_requests_come_again_in_a_new_ring(faulty_ring: RingClient, killed_pid: int):
    uids = uids_of_prompts(faulty_ring, GREEDY, SAMPLED, STOPPED, CHOICES, REFUSED)
    result = launch("replay", str(faulty_ring.run_dir.black_box), "--uid", *uids)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(uids) >= 7
    assert result.stdout.startswith(f"the same: {len(uids)} requests, "), result.stdout
    assert int(result.stdout.split(", ")[1].split()[0]) > len(uids)  # attempts


def test_frames_are_shown_as_they_are_sent(faulty_ring: RingClient, killed_pid: int):
    result = launch(
        "tail", "detokenizer:frontend", "--no-follow", "--run-dir", str(faulty_ring.run_dir.path), "-n", "3"
    )
    lines = result.stdout.splitlines()
    assert len(lines) == 3, result.stderr
    assert all('"edge":"detokenizer:frontend"' in line and StepReplies.__name__ in line for line in lines)
