"""A trivial SSE server without a model, whose streams get one token per step; measures the load generator's own cost.

It implements just enough of the API (`/health`, `/server_info`, `/generate`). `python -m benchmarks.load.paced_server
--step-ms 5` prints its address and serves until end of input.
"""

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httptools
import msgspec
import uvloop

from benchmarks.load.connection import Target, parse_url
from benchmarks.load.drive import Limits, Load
from benchmarks.load.report import Report, make_report
from benchmarks.load.workloads import LengthRange, Lengths, SamplingFields, random_prompts

MODEL_FACTS = {"served_names": ["paced"], "vocab_size": 2048, "max_model_len": 4096}


class _GenerateBody(msgspec.Struct):
    prompt: str | list[int]
    max_tokens: int


@dataclass(slots=True)
class _Stream:
    transport: asyncio.Transport
    num_prompt: int
    num_left: int
    num_sent: int = 0


class PacedServer:
    """The streams that run and the clock that moves them on; the clock only ticks while there are streams."""

    def __init__(self, step_s: float):
        self._step_s = step_s
        self._streams: list[_Stream] = []
        self._clock: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    async def start(self) -> int:
        """Listens on a free port of 127.0.0.1 and returns it."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _Peer(self), "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Closes the port and every stream."""
        if self._clock is not None:
            self._clock.cancel()
        for stream in self._streams:
            stream.transport.abort()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def add(self, transport: asyncio.Transport, body: _GenerateBody) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        transport.write(head)
        self._streams.append(_Stream(transport, len(body.prompt), body.max_tokens))
        if self._clock is None:
            self._clock = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while self._streams:
            await asyncio.sleep(self._step_s)
            for stream in self._streams:
                if not stream.transport.is_closing():
                    stream.transport.write(_step_of(stream))
            self._streams = [
                stream for stream in self._streams if stream.num_left and not stream.transport.is_closing()
            ]
        self._clock = None


class _Peer(asyncio.Protocol):
    """One client's connection; the `on_…` methods are httptools' callbacks."""

    def __init__(self, server: PacedServer):
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._path, self._body = b"", b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._path, self._body = b"", b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._path == b"/generate":
            self._server.add(self._transport, msgspec.json.decode(self._body, type=_GenerateBody))
            return
        payload = msgspec.json.encode({"status": "ready", "facts": MODEL_FACTS})
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(payload) + payload)


def _step_of(stream: _Stream) -> bytes:
    """Returns the chunk of one step: an event with one token, at the end with usage and the mark."""
    stream.num_left -= 1
    stream.num_sent += 1
    event: dict[str, object] = {"uid": 1, "text": " word", "token_ids": [7], "finish_reason": None}
    if stream.num_left:
        return _chunk(event)
    event["finish_reason"] = "length"
    event["usage"] = {"prompt_tokens": stream.num_prompt, "cached_tokens": 0, "completion_tokens": stream.num_sent}
    event["timing"] = {"queue_ms": 0.0}
    done = b"data: [DONE]\n\n"
    return _chunk(event) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done)


def _chunk(event: dict[str, object]) -> bytes:
    frame = b"data: " + msgspec.json.encode(event) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(frame), frame)


async def _serve_until_end_of_input(step_s: float) -> None:
    server = PacedServer(step_s)
    print(f"http://127.0.0.1:{await server.start()}", flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)
    await server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=5.0, help="time between two tokens of a stream")
    asyncio.run(_serve_until_end_of_input(parser.parse_args().step_ms / 1000))
    return 0


LENGTHS = Lengths(input=LengthRange(128, 128), output=LengthRange(200, 200))
MAX_SECONDS = 60.0


@contextmanager
def paced_server(step_ms: float) -> Iterator[Target]:
    """A `PacedServer` in its own process, stopped at the end."""
    command = [sys.executable, "-m", "benchmarks.load.paced_server", "--step-ms", str(step_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Target(*parse_url(process.stdout.readline().strip()))
        finally:
            process.communicate(timeout=10)


def check_client(concurrency: int, step_ms: float = 5.0) -> Report:
    """Returns the report of two rounds of `concurrency` streams that get a token each step of `step_ms`."""
    with paced_server(step_ms) as target:
        load = Load(target, SamplingFields(), Limits(2 * concurrency, MAX_SECONDS))
        requests = random_prompts(vocab_size=2048, lengths=LENGTHS, num_shared=0, seed=0)
        uvloop.run(load.closed_loop(requests, concurrency))
        return make_report(load.measurement)


if __name__ == "__main__":
    raise SystemExit(main())
