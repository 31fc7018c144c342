"""The two ways in which a generation reaches its client: as a stream of events, or whole at its end."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from frontend import sse
from frontend.errors import internal_error
from frontend.generation import Generation
from frontend.responses import JsonReply, log_internal
from frontend.service import Service
from frontend.trace import REQUEST_ID_HEADER, Trace, trace_of
from messages.errors import RequestError
from messages.replies import UserReply


class EventWriter(Protocol):
    """What an endpoint's events look like."""

    def tokens(self, generation: Generation) -> bytes:
        """Takes what has arrived and returns its frames."""
        ...

    def end(self, generation: Generation, final: UserReply) -> bytes:
        """Takes the rest and returns the last frames, all but `[DONE]`."""
        ...


class OpenStreams:
    """The streams that are being written; `tick` has those comment that were silent for `keepalive_s`."""

    def __init__(self, keepalive_s: float):
        self._keepalive_s = keepalive_s
        self._streams: set[EventStream] = set()

    def __len__(self) -> int:
        return len(self._streams)

    def tick(self) -> None:
        """Call it once a second."""
        latest_s = time.monotonic() - self._keepalive_s
        for stream in self._streams:
            if stream.wrote_s <= latest_s:
                stream.wake()

    @contextlib.contextmanager
    def hold(self, stream: "EventStream") -> Generator[None, None, None]:
        self._streams.add(stream)
        try:
            yield
        finally:
            self._streams.discard(stream)

    def is_silent(self, stream: "EventStream") -> bool:
        return time.monotonic() - stream.wrote_s >= self._keepalive_s


class EventStream:
    """An ASGI response that writes a generation's events as they come.

    The head waits for the first reply, so that a refusal is a plain HTTP error; only a long silence sends it before.
    """

    def __init__(self, service: Service, streams: OpenStreams, generation: Generation, events: EventWriter):
        self._service = service
        self._streams = streams
        self._generation = generation
        self._events = events
        self.wrote_s = time.monotonic()

    def wake(self) -> None:
        self._generation.changed.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = trace_of(scope)
        with self._streams.hold(self), watched(self._service, self._generation, receive):
            try:
                await self._write_all(send, trace)
            except Exception as error:
                if not trace.status:
                    raise
                await _write(send, sse.error_frame(internal_error(log_internal(error))) + sse.DONE, is_last=True)

    async def _write_all(self, send: Send, trace: Trace) -> None:
        generation = self._generation
        is_last = False
        while not is_last:
            await generation.changed.wait()
            if not generation.has_listener:
                return
            generation.changed.clear()
            final = generation.final
            if final is not None and final.error is not None and not trace.status:
                raise RequestError(final.error)
            is_last = final is not None
            frames = self._next_frames()
            if not frames:
                continue
            if not trace.status:
                await _write_head(send, trace)
            self.wrote_s = time.monotonic()
            await _write(send, frames, is_last=is_last)

    def _next_frames(self) -> bytes:
        """Takes what has arrived and returns what is to be written now."""
        generation, final = self._generation, self._generation.final
        if final is None:
            if generation.has_news:
                return self._events.tokens(generation)
            return sse.KEEP_ALIVE if self._streams.is_silent(self) else b""
        if final.error is None:
            return self._events.end(generation, final) + sse.DONE
        tokens = self._events.tokens(generation) if generation.has_news else b""
        return tokens + sse.error_frame(final.error) + sse.DONE


class WholeReply:
    """An ASGI response that waits for the end of a generation and then is one JSON document."""

    def __init__(self, service: Service, generation: Generation, content: Callable[[Generation, UserReply], Any]):
        self._service = service
        self._generation = generation
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with watched(self._service, self._generation, receive):
            final = await self._generation.wait_end()
            if final is None:
                return
            if final.error is not None:
                raise RequestError(final.error)
            await JsonReply(self._content(self._generation, final))(scope, receive, send)


@contextlib.contextmanager
def watched(service: Service, generation: Generation, receive: Receive) -> Generator[None, None, None]:
    """Aborts the generation as soon as its client leaves, and at the end of the block unless it has ended."""
    watcher = asyncio.create_task(_watch(service, generation, receive))
    try:
        yield
    finally:
        watcher.cancel()
        service.leave(generation)


async def _watch(service: Service, generation: Generation, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    service.leave(generation)


async def _write_head(send: Send, trace: Trace) -> None:
    trace.status = 200
    headers = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
        (REQUEST_ID_HEADER, trace.request_id.encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _write(send: Send, body: bytes, *, is_last: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not is_last})
