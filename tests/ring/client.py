"""A client for the tests of the whole ring: requests, streams, and the state of the processes."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec

from extras.faults.messages import Fault, wrap
from messages.control.admin import InstructProcesses, ProcessCommand, ProcessResult, ProcessResults
from messages.control.processes import place_of
from runtime.run_dir import RunDir
from supervisor.client.admin_client import AdminClient

TIMEOUT_S = 60.0

TOKENS_BEFORE_HARM = 10
"""A stream of `generate_disturbed` has this many tokens when a process dies."""

BARD = "bard"
BARD_DIR = Path(__file__).resolve().parents[2] / "assets" / "shakespeare-gpt2"
"""The bundled model, and its name on the server of the fixture `bard_ring`."""

ADMIN_KEY = "sk-operator"
OPERATOR = {"Authorization": f"Bearer {ADMIN_KEY}"}
"""Headers of the operator of a server that was started with `ADMIN_KEY`."""


OnTokens = Callable[[int], None]


def ignore(num_tokens: int) -> None:
    """The default `on_tokens`."""


class Generated(msgspec.Struct):
    """The reply to a request, from one JSON or joined from its events."""

    text: str
    token_ids: list[int]
    finish_reason: str
    usage: dict[str, int]
    attempts: int = 1


def generated(content: dict[str, Any]) -> Generated:
    """Returns the reply of a request that was not streamed."""
    fields = {name: content[name] for name in ("text", "token_ids", "finish_reason", "usage")}
    return Generated(**fields, attempts=content["timing"]["attempts"])


def body(prompt: str | Sequence[int], **params: Any) -> dict[str, Any]:
    """Returns a request body, greedy unless `params` specify otherwise."""
    return {"prompt": prompt if isinstance(prompt, str) else list(prompt), "temperature": 0.0, **params}


def http_client(url: str) -> httpx.Client:
    """Returns a client of a server at `http://…`, or at a Unix socket, `unix:PATH`."""
    if not url.startswith("unix:"):
        return httpx.Client(base_url=url, timeout=TIMEOUT_S)
    transport = httpx.HTTPTransport(uds=url.removeprefix("unix:"))
    return httpx.Client(base_url="http://localhost", transport=transport, timeout=TIMEOUT_S)


class RingClient:
    """Talks to one server."""

    def __init__(self, url: str, run_dir: RunDir):
        self.url = url
        self.run_dir = run_dir

    def generate(self, prompt: str | Sequence[int], **params: Any) -> Generated:
        with self._client() as client:
            reply = client.post("/generate", json=body(prompt, stream=False, **params))
        assert reply.status_code == 200, reply.text
        return msgspec.convert(reply.json(), Generated)

    def generate_all(self, requests: Sequence[dict[str, Any]], on_tokens: OnTokens = ignore) -> list[Generated]:
        """Streams all requests at once. Returns their replies; `on_tokens` gets the number of tokens of each event."""
        return self._generate_all(requests, [on_tokens] * len(requests))

    def generate_disturbed(self, requests: Sequence[dict[str, Any]], harm: Callable[[], object]) -> list[Generated]:
        """Streams all requests at once, and calls `harm` once, as soon as each stream has `TOKENS_BEFORE_HARM` tokens.

        On a busy machine some may have ended then: those have one attempt.
        """
        left = [TOKENS_BEFORE_HARM] * len(requests)

        def on_tokens(index: int, more: int) -> None:
            was_due = max(left) <= 0
            left[index] -= more
            if not was_due and max(left) <= 0:
                harm()

        return self._generate_all(requests, [partial(on_tokens, index) for index in range(len(requests))])

    def _generate_all(self, requests: Sequence[dict[str, Any]], on_tokens: Sequence[OnTokens]) -> list[Generated]:
        async def run() -> list[Generated]:
            async with self.connect() as client:
                each = zip(requests, on_tokens, strict=True)
                return await asyncio.gather(*(collect(client, request, on_event) for request, on_event in each))

        return asyncio.run(run())

    def connect(self) -> httpx.AsyncClient:
        """Returns a client with any number of connections."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT_S, limits=limits)

    def health(self) -> dict[str, Any]:
        return self._get("/health").json()

    def _get(self, path: str) -> httpx.Response:
        with self._client() as client:
            return client.get(path)

    def _client(self) -> httpx.Client:
        return http_client(self.url)

    def instruct(self, process: str, command: ProcessCommand | Fault, timeout_s: float = TIMEOUT_S) -> ProcessResult:
        """Sends an instruction to one process, as an operator would."""
        if isinstance(command, Fault):
            command = wrap(command)
        with AdminClient(self.run_dir) as line:
            result = line.give(InstructProcesses((process,), command, timeout_s), 2 * TIMEOUT_S)
        assert isinstance(result, ProcessResults), result
        return result.results[process]

    def status(self, process: str) -> dict[str, Any]:
        return self.health()["processes"][process]

    def kill(self, process: str, how: signal.Signals = signal.SIGKILL, num_restarts: int = 0) -> int:
        """Sends the signal as soon as `process` serves; returns how many restarts it will have had when it is back.

        `num_restarts`: wait for these first. A status can still be that of a process that was just killed.
        One that does not run has no pid of its own (0 would be all of ours), and one that starts cannot hang.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while (status := self.status(process))["state"] not in ("ready", "busy") or status[
            "num_restarts"
        ] < num_restarts:
            assert time.monotonic() < deadline, f"{process} does not serve: {status}"
            time.sleep(0.02)
        os.kill(status["pid"], how)
        return status["num_restarts"] + 1

    def wait_for_restart(self, process: str, num_restarts: int, timeout_s: float = 2 * TIMEOUT_S) -> None:
        """Waits until `process` has been replaced this many times and all processes serve."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                health = self.health()
            except httpx.TransportError:  # the frontend itself is being replaced
                health = {"status": "unreachable"}
            if health["status"] == "ready" and health["processes"][process]["num_restarts"] >= num_restarts:
                return
            time.sleep(0.05)
        raise AssertionError(f"{process} was not replaced within {timeout_s} s: {health}")

    def num_continued(self) -> float:
        """Returns the number of requests that were continued after a process died."""
        text = self._get("/metrics").text
        (line,) = (line for line in text.splitlines() if line.startswith("sluice_continuations_total"))
        return float(line.split()[-1])

    def stalls(self) -> list[str]:
        """Returns the counters of stalls in the metrics that are not 0, as `{kind="edge"} 1.0`."""
        lines = self._get("/metrics").text.splitlines()
        counters = [
            line.removeprefix("sluice_stalls_total") for line in lines if line.startswith("sluice_stalls_total")
        ]
        assert counters
        return [counter for counter in counters if not counter.endswith(" 0.0")]

    def gauges(self, process: str) -> dict[str, float]:
        """Returns the gauges of the next beat: the latest one may be from before what has just happened."""
        begin_s = time.monotonic()
        while (asked_s := time.monotonic()) < begin_s + TIMEOUT_S:
            status = self.status(process)
            if status["beat_age_s"] is not None and status["beat_age_s"] < asked_s - begin_s:
                return status["gauges"]
            time.sleep(0.05)
        raise AssertionError(f"{process} sent no beat within {TIMEOUT_S} s")

    def wait_until_empty(self, timeout_s: float = TIMEOUT_S) -> None:
        """Waits until no process holds state of a request and all pages are free or cached."""
        deadline = time.monotonic() + timeout_s
        while (left := self.what_is_left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, f"still there after {timeout_s} s: {left}"

    def what_is_left(self) -> dict[str, float]:
        """Returns the gauges that should be zero when nothing runs, but are not."""
        left: dict[str, float] = {}
        for name, process in self.health()["processes"].items():
            if not process["gauges"] and place_of(name) == name:
                left[f"{name}.gauges_unknown"] = 1.0
            for gauge, value in process["gauges"].items():
                if value and gauge in GAUGES_OF_REQUESTS:
                    left[f"{name}.{gauge}"] = value
            pages = process["gauges"]
            if "pages_all" in pages and pages["pages_free"] + pages["pages_cached"] != pages["pages_all"]:
                left[f"{name}.pages"] = pages["pages_all"] - pages["pages_free"] - pages["pages_cached"]
        return left


GAUGES_OF_REQUESTS = {
    "body_bytes",
    "chars_in_hand",
    "held_requests",
    "image_bytes",
    "image_fetches",
    "requests_on_hold",
    "requests",
    "requests_open",
    "waiting",
    "running",
    "streams",
    "timelines",
    "placed_requests",
    "unfinished_traces",
    "pages_held",
}


async def events_of(client: httpx.AsyncClient, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Yields the events of a stream up to `[DONE]`, which must come."""
    async with client.stream("POST", "/generate", json=request) as reply:
        if reply.status_code != 200:
            raise AssertionError(f"{reply.status_code}: {(await reply.aread()).decode()}")
        async for line in lines_of(reply):
            if line == b"data: [DONE]":
                return
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))
    raise AssertionError("the stream ended without [DONE]")


async def lines_of(reply: httpx.Response) -> AsyncIterator[bytes]:
    """Yields the lines of an event stream. (httpx's own `aiter_lines` also splits at U+0085 and U+2028.)"""
    rest = b""
    async for piece in reply.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line


async def collect(client: httpx.AsyncClient, request: dict[str, Any], on_tokens: OnTokens = ignore) -> Generated:
    """Returns the reply of a whole stream."""
    text: list[str] = []
    token_ids: list[int] = []
    last: dict[str, Any] = {}
    async for event in events_of(client, request):
        assert "error" not in event, event
        text.append(event["text"])
        token_ids += event["token_ids"]
        on_tokens(len(event["token_ids"]))
        last = event
    return Generated("".join(text), token_ids, last["finish_reason"], last["usage"], last["timing"]["attempts"])
