"""Rows that get zero to five tokens per step: clients see the same text as with one token per step."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from benchmarks.server_process import server_with_scheduler
from tests.ring.client import RingClient, body, events_of

pytestmark = pytest.mark.ring

START_TIMEOUT_S = 90.0
PROMPTS = ["Once upon a time", "\u00e9\u4e2d\U0001f600"]


def serving(module: str) -> Iterator[RingClient]:
    flags = ["--num-pages", "40", "--block-size", "16", "--max-model-len", "256", "--cpu-threads", "1"]
    with server_with_scheduler(module, flags, START_TIMEOUT_S) as (server, target):
        client = RingClient(target.origin, server.run_dir)
        yield client
        client.wait_until_empty()


@pytest.fixture(scope="module")
def drafting() -> Iterator[RingClient]:
    yield from serving("tests.scheduler_proc.drafting_process")


@pytest.fixture(scope="module")
def plain() -> Iterator[RingClient]:
    yield from serving("tests.scheduler_proc.simulated_process")


async def collect(client: RingClient, request: dict[str, Any]) -> list[dict[str, Any]]:
    async with client.connect() as connection:
        return [event async for event in events_of(connection, request)]


def requests(stops: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    kinds: list[dict[str, Any]] = [
        {"max_tokens": 36},
        {"max_tokens": 24, "logprobs": 2, "ignore_eos": True},
        {"max_tokens": 28, "temperature": 0.8, "seed": 7, "ignore_eos": True},
        {"max_tokens": 24, "presence_penalty": 0.5, "min_tokens": 16},
    ]
    return [body(prompt, **kind, **({"stop": list(stops)} if stops else {})) for prompt in PROMPTS for kind in kinds]


def seen(reply: dict[str, Any]) -> dict[str, Any]:
    """Returns the parts of a reply that do not depend on time."""
    usage = {name: count for name, count in reply["usage"].items() if "prompt" in name or "completion" in name}
    return {name: reply[name] for name in ("text", "token_ids", "finish_reason", "stop_reason") if name in reply} | {
        "logprobs": reply.get("logprobs"),
        "usage": usage,
    }


def whole_replies(client: RingClient, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    replies = [httpx.post(f"{client.url}/generate", json={**one, "stream": False}, timeout=60) for one in bodies]
    assert [reply.status_code for reply in replies] == [200] * len(bodies), [reply.text for reply in replies]
    return [seen(reply.json()) for reply in replies]


@pytest.fixture(scope="module")
def without_drafts(plain: RingClient) -> list[dict[str, Any]]:
    return whole_replies(plain, requests())


def test_whole_replies_are_the_same(drafting: RingClient, without_drafts: list[dict[str, Any]]) -> None:
    assert whole_replies(drafting, requests()) == without_drafts


def test_a_stop_string_inside_a_run_ends_the_text_there(
    drafting: RingClient, plain: RingClient, without_drafts: list[dict[str, Any]]
) -> None:
    stops = tuple(dict.fromkeys(reply["text"][10:13] for reply in without_drafts if len(reply["text"]) > 12))[:4]
    expected = whole_replies(plain, requests(stops))
    assert sum(reply["finish_reason"] == "stop" for reply in expected) >= 3
    assert whole_replies(drafting, requests(stops)) == expected


@pytest.mark.anyio
async def test_events_bring_runs_in_order_with_their_logprobs(
    drafting: RingClient, without_drafts: list[dict[str, Any]]
) -> None:
    sizes: set[int] = set()
    for request, reply in zip(requests(), without_drafts, strict=True):
        *events, last = await collect(drafting, {**request, "stream": True})
        sizes.update(len(event["token_ids"]) for event in events)
        reported = [*events, last]
        assert "".join(event["text"] for event in reported) == reply["text"]
        assert [token_id for event in reported for token_id in event["token_ids"]] == reply["token_ids"]
        if reply["logprobs"]:
            assert [token for event in reported for token in event["logprobs"]] == reply["logprobs"]
            assert all(len(event["logprobs"]) == len(event["token_ids"]) for event in reported)
    assert sizes >= {1, 2, 3, 4, 5}


def test_the_openai_api_streams_the_same(drafting: RingClient, plain: RingClient) -> None:
    texts: list[str] = []
    for client in (drafting, plain):
        with openai.OpenAI(base_url=f"{client.url}/v1", api_key="none") as api:
            model = api.models.list().data[0].id
            stream = api.completions.create(model=model, prompt=PROMPTS[0], max_tokens=48, temperature=0, stream=True)
            texts.append("".join(chunk.choices[0].text for chunk in stream))
    assert texts[0] == texts[1] != ""
