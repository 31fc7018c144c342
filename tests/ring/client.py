"""A client for the tests of the whole ring: requests, streams, and what the processes say of themselves."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import msgspec

TIMEOUT_S = 60.0


class Generated(msgspec.Struct):
    """What a request got back, from one JSON or joined from its events."""

    text: str
    token_ids: list[int]
    finish_reason: str
    usage: dict[str, int]


def body(prompt: str | Sequence[int], **params: Any) -> dict[str, Any]:
    """Returns a request body; greedy where `params` says nothing else."""
    return {"prompt": prompt if isinstance(prompt, str) else list(prompt), "temperature": 0.0, **params}


class RingClient:
    """Talks to one server."""

    def __init__(self, url: str):
        self.url = url

    def generate(self, prompt: str | Sequence[int], **params: Any) -> Generated:
        reply = httpx.post(f"{self.url}/generate", json=body(prompt, stream=False, **params), timeout=TIMEOUT_S)
        assert reply.status_code == 200, reply.text
        return msgspec.convert(reply.json(), Generated)

    def generate_all(self, requests: Sequence[dict[str, Any]]) -> list[Generated]:
        """Streams all requests at once and returns what each got."""

        async def run() -> list[Generated]:
            async with self._client() as client:
                return await asyncio.gather(*(collect(client, request) for request in requests))

        return asyncio.run(run())

    def _client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT_S, limits=limits)

    def health(self) -> dict[str, Any]:
        return httpx.get(f"{self.url}/health", timeout=5.0).json()

    def gauges(self, process: str) -> dict[str, float]:
        return self.health()["processes"][process]["gauges"]

    def wait_until_empty(self, timeout_s: float) -> None:
        """Waits until no process holds anything of any request and all pages are free or cached."""
        deadline = time.monotonic() + timeout_s
        while (left := self.what_is_left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, f"still there after {timeout_s} s: {left}"

    def what_is_left(self) -> dict[str, float]:
        """Returns the gauges that should be zero when nothing runs and are not."""
        left: dict[str, float] = {}
        for name, process in self.health()["processes"].items():
            for gauge, value in process["gauges"].items():
                if value and gauge in GAUGES_OF_REQUESTS:
                    left[f"{name}.{gauge}"] = value
        pages = self.gauges("scheduler")
        if pages["pages_free"] + pages["pages_cached"] != pages["pages_all"]:
            left["scheduler.pages"] = pages["pages_all"] - pages["pages_free"] - pages["pages_cached"]
        return left


GAUGES_OF_REQUESTS = {"requests", "requests_open", "waiting", "running", "streams", "pages_held"}


async def events_of(client: httpx.AsyncClient, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Yields the events of a stream up to `[DONE]`, which must come."""
    async with client.stream("POST", "/generate", json=request) as reply:
        if reply.status_code != 200:
            raise AssertionError(f"{reply.status_code}: {(await reply.aread()).decode()}")
        async for line in reply.aiter_lines():
            if line == "data: [DONE]":
                return
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream ended without [DONE]")


async def collect(client: httpx.AsyncClient, request: dict[str, Any]) -> Generated:
    """Returns the whole of a stream."""
    text: list[str] = []
    token_ids: list[int] = []
    last: dict[str, Any] = {}
    async for event in events_of(client, request):
        assert "error" not in event, event
        text.append(event["text"])
        token_ids += event["token_ids"]
        last = event
    return Generated("".join(text), token_ids, last["finish_reason"], last["usage"])
