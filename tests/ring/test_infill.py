"""Filling in the middle on a real server: it computes the prompt of the model's marks, however it is requested."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken, Tokenizer

from tests.ring.client import TIMEOUT_S, RingClient
from tests.ring.conftest import RESTART_FLAGS
from tests.ring.recorded import check, read_calls
from tests.tiny_llama import VOCAB_SIZE, write_tiny_llama, write_tokenizer

pytestmark = pytest.mark.ring

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>")
MAX_TRIES = 5
PREFIX, SUFFIX = "def f(x):\n  ", "\nf(1)\n"
FILE = "<|file_sep|>a.py\nA = 1\n<|file_sep|>filename\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fim")
    write_tiny_llama(path)
    write_tokenizer(path, VOCAB_SIZE - len(MARKS))
    made = Tokenizer.from_file(str(path / "tokenizer.json"))
    made.add_special_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    made.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def ring(tokenizer: Path, start_ring: Any) -> RingClient:
    return start_ring(tokenizer, *RESTART_FLAGS, "--served-model-name", "m")


def post(ring: RingClient, path: str, **fields: Any) -> httpx.Response:
    reply = httpx.post(f"{ring.url}{path}", json=fields, timeout=TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    return reply


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_completions_and_infill_give_what_the_marks_give(ring: RingClient) -> None:
    marked = f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>"
    expected = ring.generate(marked, max_tokens=24)
    with_file = ring.generate(FILE + marked, max_tokens=24)
    sampling: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
    asked = {"prompt": PREFIX, "suffix": SUFFIX, **sampling}
    (choice,) = post(ring, "/v1/completions", **asked, logprobs=1).json()["choices"]
    assert choice["text"] == expected.text
    assert len(choice["logprobs"]["tokens"]) == len(expected.token_ids)
    streamed = events(post(ring, "/v1/completions", **asked, stream=True))
    assert "".join(event["choices"][0]["text"] for event in streamed) == expected.text
    sampled = post(ring, "/v1/completions", **{**asked, "temperature": 1, "n": 2, "seed": 5}).json()["choices"]
    assert len({choice["text"] for choice in sampled}) == 2
    gap = {"input_prefix": "def f(x):\n", "prompt": "  ", "input_suffix": SUFFIX, **sampling}
    reply = post(ring, "/infill", **gap).json()
    assert (reply["content"], reply["tokens_evaluated"]) == (expected.text, expected.usage["prompt_tokens"])
    with_extra = post(ring, "/infill", **gap, input_extra=[{"filename": "a.py", "text": "A = 1\n"}], stream=True)
    *pieces, last = events(with_extra)
    assert "".join(piece["content"] for piece in [*pieces, last]) == with_file.text
    assert (last["stop"], last["tokens_evaluated"]) == (True, with_file.usage["prompt_tokens"])
    warm = post(ring, "/infill", input_prefix="", input_suffix="", n_predict=0).json()
    assert (warm["content"], warm["tokens_predicted"], warm["tokens_evaluated"]) == ("", 0, len(MARKS) - 1)
    stop = expected.text[4:6]
    cut = post(ring, "/infill", **gap, stop=[stop]).json()
    assert cut["content"] == expected.text[: expected.text.index(stop)]


def test_continue_sees_that_the_model_fills_gaps(ring: RingClient) -> None:
    """Its extension for editors decides so by a name in the template, and then sends the suffix."""
    show, fill = read_calls("fim/continue")
    check(ring.url, show)
    check(ring.url, fill)
    assert fill.body["suffix"] == SUFFIX


def fill_and_kill(ring: RingClient, asked: dict[str, Any]) -> str:
    """Returns the text of a stream, during which processes are killed unless it ends before."""
    killed = False
    text = ""
    with httpx.stream("POST", f"{ring.url}/v1/completions", json={**asked, "stream": True}, timeout=TIMEOUT_S) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
            if not killed and text:
                ring.kill("tokenizer")
                ring.kill("scheduler")
                killed = True
    return text


def test_a_fill_continues_when_processes_die(ring: RingClient) -> None:
    asked = {"prompt": PREFIX, "suffix": SUFFIX, "temperature": 0, "max_tokens": 120, "ignore_eos": True}
    (before,) = post(ring, "/v1/completions", **asked).json()["choices"]
    for _ in range(MAX_TRIES):
        num_before = ring.num_continued()
        assert fill_and_kill(ring, asked) == before["text"]
        if ring.num_continued() > num_before:
            break
    else:
        raise AssertionError("every stream ended before the scheduler died")


def test_a_model_without_marks_refuses(plain_ring: RingClient) -> None:
    reply = httpx.post(f"{plain_ring.url}/infill", json={"input_prefix": "a", "input_suffix": "b"}, timeout=TIMEOUT_S)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "input_suffix")
    assert "no tokens to fill in the middle" in error["message"]
