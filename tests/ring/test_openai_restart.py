"""A process is killed while choices are generated: text, logprobs and usage equal those of an undisturbed request."""

import json
from typing import Any

import httpx
import pytest

from tests.ring.client import TIMEOUT_S, RingClient

pytestmark = pytest.mark.ring

SAMPLED = {"max_tokens": 60, "temperature": 0.9, "seed": 17, "n": 3, "ignore_eos": True}
COMPLETION = ("completions", {"prompt": "ROMEO:\nBut soft, what light", "logprobs": 2, "echo": True, **SAMPLED})
CHAT = (
    "chat/completions",
    {"messages": [{"role": "user", "content": "Good morrow"}], "logprobs": True, "top_logprobs": 1, **SAMPLED},
)
NUM_CHUNKS_BEFORE = 20


@pytest.fixture(scope="module")
def ring(bard_ring: RingClient) -> RingClient:
    return bard_ring


class Choices:
    """The sum of a stream's chunks, by choice."""

    def __init__(self) -> None:
        self.texts = ["", "", ""]
        self.logprobs: list[list[float | None]] = [[], [], []]
        self.reasons: list[str | None] = [None, None, None]
        self.usage: dict[str, Any] = {}

    def add(self, chunk: dict[str, Any]) -> None:
        assert "error" not in chunk, chunk
        self.usage = chunk["usage"] or self.usage
        for choice in chunk["choices"]:
            index, logprobs = choice["index"], choice["logprobs"] or {}
            self.texts[index] += choice["text"] if "text" in choice else choice["delta"].get("content", "")
            self.logprobs[index] += logprobs.get("token_logprobs") or [
                entry["logprob"] for entry in logprobs.get("content", ())
            ]
            self.reasons[index] = choice["finish_reason"] or self.reasons[index]


def stream(ring: RingClient, path: str, body: dict[str, Any], kill: str | None = None) -> Choices:
    """Returns the reply to a request during which process `kill` was killed."""
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    choices = Choices()
    num_chunks = 0
    with httpx.stream("POST", f"{ring.url}/v1/{path}", json=request, timeout=TIMEOUT_S) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            choices.add(json.loads(line[6:]))
            num_chunks += 1
            if num_chunks == NUM_CHUNKS_BEFORE and kill is not None:
                ring.kill(kill)
    return choices


@pytest.fixture(scope="module")
def undisturbed(ring: RingClient) -> dict[str, Choices]:
    return {path: stream(ring, path, body) for path, body in (COMPLETION, CHAT)}


@pytest.mark.parametrize(
    ("path", "body", "process"),
    [(*COMPLETION, "tokenizer"), (*COMPLETION, "scheduler"), (*CHAT, "scheduler"), (*CHAT, "detokenizer")],
)
def test_choices_continue(
    ring: RingClient, undisturbed: dict[str, Choices], path: str, body: dict[str, Any], process: str
):
    expected = undisturbed[path]
    num_restarts = ring.status(process)["num_restarts"]
    got = stream(ring, path, body, kill=process)
    ring.wait_for_restart(process, num_restarts + 1)
    assert got.texts == expected.texts
    assert len(set(got.texts)) == 3
    assert got.reasons == ["length"] * 3
    for ours, theirs in zip(got.logprobs, expected.logprobs, strict=True):
        assert len(ours) == len(theirs)
        assert [entry is None for entry in ours] == [entry is None for entry in theirs]
        assert [entry or 0.0 for entry in ours] == pytest.approx([entry or 0.0 for entry in theirs], abs=1e-4)
    for name in ("prompt_tokens", "completion_tokens"):
        assert got.usage[name] == expected.usage[name]
