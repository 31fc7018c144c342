"""Responses generated in the background, and the streams of clients that follow them."""

import asyncio

from starlette.types import Receive, Scope, Send

from frontend.api.responses.events import ResponseEvents
from frontend.api.responses.items import Item
from frontend.api.responses.reply import Response, ResponseAnswer, failed
from frontend.api.responses.store import ResponseStore, StoredResponse
from frontend.errors import internal_error
from frontend.http import sse
from frontend.http.responses import log_internal
from frontend.http.stream import write_body, write_head, write_until_gone
from frontend.requests.trace import RequestTrace, trace_of
from frontend.service import Service


class BackgroundResponses:
    """Runs a task per response until the response has ended."""

    def __init__(self, service: Service, store: ResponseStore):
        self._service = service
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self, answer: ResponseAnswer, items: list[Item], trace: RequestTrace, *, is_streamed: bool
    ) -> StoredResponse:
        """Stores a response and starts generating it. `trace` belongs to this response and ends with it."""
        generation = answer.blocks.generation

        def cancel() -> None:
            if generation.final is None:
                self._service.abort(generation)

        frames: list[bytes] | None = [] if is_streamed else None
        stored = StoredResponse(items, answer.so_far, cancel, frames, key=trace.client.key)
        self._store.add_running(answer.id, stored)
        task = asyncio.create_task(self._run(answer, stored, trace))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stored

    async def _run(self, answer: ResponseAnswer, stored: StoredResponse, trace: RequestTrace) -> None:
        frames = ResponseEvents(answer)
        try:
            stored.grow([*frames.begin()])
            response = await self._read(answer, stored, frames)
        except Exception as error:
            response = failed(answer.so_far(), internal_error(log_internal(error)))
        finally:
            self._service.record_response(trace)
        stored.grow([frames.last_frame(response)])
        self._store.end(response, stored)

    async def _read(self, answer: ResponseAnswer, stored: StoredResponse, frames: ResponseEvents) -> Response:
        """Waits for the end of the response and returns it."""
        generation = answer.blocks.generation
        while generation.final is None:
            generation.changed.clear()
            await generation.changed.wait()
            stored.grow([*frames.write(answer.blocks.take_steps())])
        stored.grow([*frames.write(answer.blocks.finish(generation.final))])
        return answer.ended(generation.final)


class FollowingStream:
    """An ASGI response: streams the frames of a stored response from number `start` on, until its end."""

    def __init__(self, stored: StoredResponse, start: int, keepalive_s: float):
        self._stored = stored
        self._next = start
        self._keepalive_s = keepalive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await write_head(send, trace_of(scope))
        await write_until_gone(self._write(send), receive)

    async def _write(self, send: Send) -> None:
        frames = self._stored.frames
        assert frames is not None
        while True:
            has_ended, new = self._stored.has_ended, frames[self._next :]
            self._next += len(new)
            if new or has_ended:
                await write_body(send, b"".join(new), is_last=has_ended)
            if has_ended:
                return
            if self._next >= len(frames):
                try:
                    async with asyncio.timeout(self._keepalive_s):
                        await self._stored.wait()
                except TimeoutError:
                    await write_body(send, sse.KEEP_ALIVE, is_last=False)
