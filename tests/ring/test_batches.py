"""Batches of the `openai` client on a server whose processes are killed: each line runs once, with the same result."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from openai.types import Batch

from extras.faults.messages import ClearFaults, EdgeFault
from tests.ring.client import RingClient, body

pytestmark = pytest.mark.ring

NUM_LINES = 40
MAX_TOKENS = 150
TIMEOUT_S = 120.0
PROMPTS = [[5 + number, 6, 7, 8] for number in range(NUM_LINES)]
URL = "/v1/completions"


@pytest.fixture(scope="module")
def ring(twin_ring: RingClient) -> RingClient:
    return twin_ring


@pytest.fixture(autouse=True)
def slow_edge(ring: RingClient) -> Iterator[None]:
    """Each line reaches the scheduler half a second late, so that a batch takes seconds on any machine."""
    ring.instruct("tokenizer", EdgeFault("scheduler", "delay", probability=1.0, delay_s=0.5))
    yield
    ring.instruct("tokenizer", ClearFaults())


@pytest.fixture
def client(ring: RingClient) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{ring.url}/v1", api_key="none", max_retries=20, timeout=TIMEOUT_S) as client:
        yield client


def upload(client: OpenAI, path: Path, num_lines: int = NUM_LINES) -> str:
    sampling = {"max_tokens": MAX_TOKENS, "ignore_eos": True}
    lines = [
        {"custom_id": f"line-{number}", "method": "POST", "url": URL, "body": body(PROMPTS[number], **sampling)}
        for number in range(num_lines)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return client.files.create(file=path, purpose="batch").id


def wait_for(client: OpenAI, batch: Batch, condition: Callable[[Batch], bool]) -> Batch:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition(batch):
        assert time.monotonic() < deadline, batch
        assert batch.status not in ("failed", "expired"), batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def num_completed(batch: Batch) -> int:
    assert batch.request_counts is not None
    return batch.request_counts.completed


def owner(ring: RingClient) -> str:
    """The frontend that runs the batches."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        for name, process in ring.health()["processes"].items():
            if process["gauges"].get("batches"):
                return name
        time.sleep(0.05)
    raise AssertionError("no frontend runs a batch")


def test_every_line_is_answered_once_whatever_dies(client: OpenAI, ring: RingClient, tmp_path: Path):
    file_id = upload(client, tmp_path / "in.jsonl")
    batch = client.batches.create(
        input_file_id=file_id, endpoint=URL, completion_window="24h", metadata={"purpose": "test"}
    )
    assert batch.status == "validating"
    batch = wait_for(client, batch, lambda batch: num_completed(batch) >= 2)
    runs_batches = owner(ring)
    ring.kill("scheduler")
    seen = num_completed(batch)
    batch = wait_for(client, batch, lambda batch: num_completed(batch) > seen)
    ring.kill(runs_batches)
    batch = wait_for(client, batch, lambda batch: batch.status == "completed")
    assert batch.request_counts is not None
    assert (batch.request_counts.total, num_completed(batch), batch.request_counts.failed) == (NUM_LINES, NUM_LINES, 0)
    assert (batch.metadata, batch.error_file_id) == ({"purpose": "test"}, None)
    assert batch.output_file_id is not None
    results = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert sorted(result["custom_id"] for result in results) == sorted(f"line-{number}" for number in range(NUM_LINES))
    texts = {result["custom_id"]: result["response"]["body"]["choices"][0]["text"] for result in results}
    alone = ring.generate_all([body(prompt, max_tokens=MAX_TOKENS, ignore_eos=True) for prompt in PROMPTS])
    assert [texts[f"line-{number}"] for number in range(NUM_LINES)] == [reply.text for reply in alone]
    assert {result["response"]["status_code"] for result in results} == {200}
    listed = client.files.retrieve(batch.output_file_id)
    assert (listed.purpose, listed.bytes) == ("batch_output", len(client.files.content(batch.output_file_id).content))


def test_a_batch_is_cancelled_and_its_files_deleted(client: OpenAI, tmp_path: Path):
    file_id = upload(client, tmp_path / "in.jsonl")
    batch = client.batches.create(input_file_id=file_id, endpoint=URL, completion_window="24h")
    assert client.batches.list(limit=1).data[0].id == batch.id
    assert client.files.delete(file_id).deleted
    batch = wait_for(client, batch, lambda batch: batch.status == "in_progress")
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = wait_for(client, batch, lambda batch: batch.status == "cancelled")
    assert batch.error_file_id is not None
    failures = [json.loads(line) for line in client.files.content(batch.error_file_id).text.splitlines()]
    assert {failure["error"]["code"] for failure in failures} == {"batch_cancelled"}
    assert len(failures) + num_completed(batch) == NUM_LINES
    assert file_id not in [file.id for file in client.files.list()]
