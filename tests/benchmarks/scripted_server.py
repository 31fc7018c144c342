"""A local HTTP server that answers each request with the next script, byte for byte."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec

from benchmarks.load.connection import Target

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


@dataclass
class Script:
    """Pieces that are sent one by one, each in a write of its own; then the connection stays, closes, or hangs."""

    pieces: list[bytes]
    then: str = "keep"


@dataclass
class ScriptedServer:
    """The requests received so far."""

    target: Target
    num_connections: int = 0
    bodies: list[bytes] = field(default_factory=list)


@contextlib.asynccontextmanager
async def scripted_server(*scripts: Script, timeout_s: float = 30.0) -> AsyncIterator[ScriptedServer]:
    """Serves `scripts` in turn on a free port."""
    queue = list(scripts)
    tasks: set[asyncio.Task[None]] = set()
    state: ScriptedServer

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(task := asyncio.current_task())
        state.num_connections += 1
        try:
            while (body := await _read_request(reader)) is not None:
                state.bodies.append(body)
                script = queue.pop(0)
                for piece in script.pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if script.then == "close":
                    return
                if script.then == "hang":
                    await asyncio.Event().wait()
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    state = ScriptedServer(Target("127.0.0.1", server.sockets[0].getsockname()[1], timeout_s=timeout_s))
    try:
        yield state
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_request(reader: asyncio.StreamReader) -> bytes | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return await reader.readexactly(length)


def chunk(payload: bytes) -> bytes:
    """One chunk of a chunked body; an empty one ends it."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def event(token_ids: list[int], finish_reason: str | None = None, **more: object) -> bytes:
    """The frame of one event of `/generate`."""
    fields = {"uid": 1, "text": "é", "token_ids": token_ids, "finish_reason": finish_reason, **more}
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


def last_event(token_ids: list[int], num_tokens: int, num_cached: int = 0) -> bytes:
    """The last event of a request of five prompt tokens."""
    usage = {"prompt_tokens": 5, "cached_tokens": num_cached, "completion_tokens": num_tokens}
    return event(token_ids, "length", usage=usage, timing={"queue_ms": 1.5, "prefill_ms": None, "tokens_per_s": 9.0})


def stream_of(*frames: bytes) -> list[bytes]:
    """The pieces of a whole answer: head, a chunk for each frame, the end."""
    return [SSE_HEAD, *(chunk(frame) for frame in frames), chunk(b"")]
