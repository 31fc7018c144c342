"""Deliberate stalls of a real ring: each is reported once, with a snapshot, and resolved without loss for streams."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.server_process import LAUNCH
from extras.faults.messages import Starve, StopReading
from messages.control.admin import Acknowledged
from messages.frame_files import find_readers
from messages.ring.requests import TokenizeMsg
from tests.ring.client import ADMIN_KEY, OPERATOR, Generated, RingClient, body
from tests.supervisor.fake_run import wait_until

pytestmark = pytest.mark.ring

REQUESTS = [body([5, 6, 7 + number], max_tokens=60, ignore_eos=True, request_id=f"r{number}") for number in range(3)]


@pytest.fixture(scope="module")
def ring(faulty_ring: RingClient) -> RingClient:
    return faulty_ring


@pytest.fixture(scope="module")
def expected(ring: RingClient) -> list[Generated]:
    return ring.generate_all(REQUESTS)


def num_stalls(ring: RingClient) -> dict[str, float]:
    return {counter.split('"')[1]: float(counter.split()[-1]) for counter in ring.stalls()}


def latest(directory: Path, ending: str) -> Path:
    return max(path for path in directory.iterdir() if path.name.endswith(ending))


def check_continued(ring: RingClient, process: str, expected: list[Generated], begin: Callable[[], None]) -> None:
    """The stall that `begin` causes ends with a new `process`, and every stream is exact."""
    num_restarts = ring.status(process)["num_restarts"]
    begin()
    got = ring.generate_all(REQUESTS)
    assert [(one.text, one.token_ids) for one in got] == [(one.text, one.token_ids) for one in expected]
    ring.wait_for_restart(process, num_restarts + 1)
    assert ring.status(process)["num_restarts"] == num_restarts + 1


def starve(ring: RingClient, uid: int = 0) -> None:
    assert isinstance(ring.instruct("scheduler", Starve(uid)), Acknowledged)


def read_manifest(snapshot: Path) -> dict[str, Any]:
    """Waits until the snapshot is whole: its manifest is written again after the logs."""
    manifest, log = snapshot / "manifest.json", snapshot / "processes/frontend/log"
    wait_until(lambda: log.exists() and manifest.stat().st_mtime_ns >= log.stat().st_mtime_ns)
    wait_until(lambda: manifest.stat().st_size > 0)
    return json.loads(manifest.read_text())


def test_a_process_that_does_not_receive(ring: RingClient, expected: list[Generated], snapshot_dir: Path):
    before = num_stalls(ring)

    def begin() -> None:
        assert isinstance(ring.instruct("tokenizer", StopReading()), Acknowledged)

    check_continued(ring, "tokenizer", expected, begin)
    assert num_stalls(ring) == before | {"edge": before.get("edge", 0) + 1}
    snapshot = latest(snapshot_dir, "stall-tokenizer")
    manifest = read_manifest(snapshot)
    assert (manifest["cause"], manifest["process"], manifest["missing"]) == ("stall", "tokenizer", [])
    assert "turns its loop and takes nothing from frontend: of " in manifest["text"]
    assert " id r" in manifest["text"]
    assert manifest["config"]["run"]["stall_s"] == 6
    for name in ("frontend", "tokenizer", "scheduler", "detokenizer"):
        files = snapshot / "processes" / name
        assert "most recent call first" in (files / "stacks").read_text()
        assert "State:" in (files / "status").read_text()
        assert all((files / file).stat().st_size for file in ("maps", "limits", "threads"))
    assert "faults.py" in (snapshot / "processes/tokenizer/stacks").read_text()  # what it was doing
    assert snapshot.stat().st_mode & 0o77 == 0
    assert manifest["config"]["http"]["admin_key"] == ["***"]
    assert not any(ADMIN_KEY in path.read_text(errors="replace") for path in snapshot.rglob("*") if path.is_file())
    front = snapshot / "processes/frontend"
    shown = json.loads((front / "requests.json").read_text())
    assert {line["request_id"] for line in shown} == {"r0", "r1", "r2"}
    assert all(line["stages"] for line in shown)
    assert json.loads((front / "health.json").read_text())["processes"].keys() >= {"scheduler"}
    assert "sluice_stalls_total" in (front / "metrics").read_text()
    names = [status["name"] for status in json.loads((snapshot / "processes.json").read_text())]
    assert names == ["frontend", "tokenizer", "scheduler", "detokenizer"]


def test_a_process_that_was_stopped(ring: RingClient, expected: list[Generated], snapshot_dir: Path):
    before = num_stalls(ring)
    check_continued(ring, "detokenizer", expected, lambda: os.kill(ring.status("detokenizer")["pid"], signal.SIGSTOP))
    assert num_stalls(ring) == before | {"process": before.get("process", 0) + 1}
    snapshot = latest(snapshot_dir, "stall-detokenizer")
    manifest = read_manifest(snapshot)
    assert "it was stopped by a signal" in manifest["text"]
    assert manifest["missing"] == ["the stacks of detokenizer: it is stopped"]
    assert "T (stopped)" in (snapshot / "processes/detokenizer/status").read_text()


def test_a_queue_that_no_one_leaves(ring: RingClient, expected: list[Generated], snapshot_dir: Path):
    before = num_stalls(ring)
    check_continued(ring, "scheduler", expected, lambda: starve(ring))
    assert num_stalls(ring) == before | {"queue": before.get("queue", 0) + 1}
    text = read_manifest(latest(snapshot_dir, "stall-scheduler"))["text"]
    assert "lets none of 3 waiting requests in, with 0 rows taken, " in text


def test_a_stream_that_is_left_out(ring: RingClient, expected: list[Generated]):
    before = num_stalls(ring)
    uid = last_uid(ring) + 1
    check_continued(ring, "scheduler", expected, lambda: starve(ring, uid))
    assert num_stalls(ring) == before | {"stream": before.get("stream", 0) + 1}
    wait_until(lambda: "stalls" not in ring.health())  # the next beat of the frontend reports that the stream continues


def test_a_crash_and_a_command_leave_snapshots_too_and_only_the_latest_stay(
    ring: RingClient, expected: list[Generated], snapshot_dir: Path, tmp_path: Path
):
    num_restarts = ring.kill("detokenizer")  # which no other file kills: of one cause there is a snapshot a minute
    ring.wait_for_restart("detokenizer", num_restarts)
    manifest = read_manifest(latest(snapshot_dir, "crash-detokenizer"))
    assert "SIGKILL" in manifest["text"]
    out = tmp_path / "mine"
    for _ in range(3):  # with the snapshot of the crash this is one too many, even if this test runs alone
        reply = httpx.post(f"{ring.url}/admin/snapshot", headers=OPERATOR, timeout=60.0).json()
    assert (Path(reply["directory"]) / "processes/scheduler/stacks").exists()
    for _ in range(2):
        command = [*LAUNCH, "snapshot", "--run-dir", str(ring.run_dir.path), "--out", str(out), "--redact"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)
    assert (done.returncode, "exists already" in done.stderr) == (2, True)
    assert json.loads((out / "manifest.json").read_text())["cause"] == "command"
    prompts, redacted = read_prompts(Path(reply["directory"])), read_prompts(out)
    assert any(prompts.values())
    assert {uid: len(ids) for uid, ids in prompts.items()} == {uid: len(ids) for uid, ids in redacted.items()}
    assert not any(redacted[uid] == ids for uid, ids in prompts.items() if any(ids))
    assert not list(out.rglob("log"))
    wait_until(lambda: len(list(snapshot_dir.iterdir())) == 3)


def read_prompts(snapshot: Path) -> dict[int, bytes]:
    """Returns the token ids of the prompts that the frontend has sent, by uid."""
    records = [record for reader in find_readers(snapshot / "black-box") for record in reader.read()]
    sent = [record.decode() for record in records if record.is_sent and record.receiver == "tokenizer"]
    return {message.uid: message.prompt_ids for message in sent if isinstance(message, TokenizeMsg)}


def last_uid(ring: RingClient) -> int:
    lines = httpx.get(f"{ring.url}/requests", timeout=60.0).json()["requests"]
    return max(line["uid"] for line in lines)
