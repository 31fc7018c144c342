"""The two kinds of replies for the choices of a request: a stream of events, or one document at the end."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from frontend.errors import internal_error
from frontend.http import sse
from frontend.http.large_reply import make_document
from frontend.http.responses import JsonReply, log_internal
from frontend.images.parts import ImagePart
from frontend.requests.generation import Generation, raise_error, wait_for_ends
from frontend.requests.queue_place import QueuePlace, find_place
from frontend.requests.timing import SERVER_TIMING_HEADER, server_timing
from frontend.requests.trace import RequestTrace, trace_of
from frontend.service import Service
from messages.errors import ErrorInfo, RequestError
from messages.ring.images import ImageInput
from messages.ring.replies import UserReply

T = TypeVar("T")

MAX_STEPS_A_WRITE = 64
"""Maximum steps, over all choices, in one write. A late response catches up in few writes, and a slow reader adds at
most about 10 KB to the connection's buffer."""


LINE_PAUSE_S = 0.005
"""After each line, so that a client reads it by itself. More steps that arrive meanwhile share the next line."""

READ_PATIENCE_S = 10.0
"""A draining server stops waiting for a client that has read nothing for this long."""


class EventWriter(Protocol):
    """The format of an endpoint's events. By default they are server-sent ones that end with `[DONE]`."""

    content_type: ClassVar[bytes] = sse.CONTENT_TYPE
    keep_alive: ClassVar[bytes] = sse.KEEP_ALIVE
    """Written after a long silence."""
    splits_lines: ClassVar[bool] = False
    """Each line is an HTTP chunk of its own, for clients that parse as one document what they read at once."""

    def tokens(self, generation: Generation) -> bytes:
        """Takes the tokens of one step and returns their events, preceded by the opening events of the choice."""
        ...

    def end(self, generation: Generation, final: UserReply) -> bytes:
        """Takes the remaining output of a choice and returns its last frames."""
        ...

    def close(self) -> bytes:
        """Returns the frames after the end of the last choice."""
        return sse.DONE

    def fail(self, error: ErrorInfo) -> bytes:
        """Returns the frames that end a stream after an error."""
        return sse.error_frame(error) + sse.DONE


class OpenStreams:
    """The streams that are being written; `tick` makes them send comments: their place in the queue if it has changed,
    or a keep-alive if they were silent for `keepalive_s`.
    """

    def __init__(self, keepalive_s: float):
        self._keepalive_s = keepalive_s
        self._streams: set[EventStream] = set()
        self.on_end: Callable[[], object] = bool
        """Called when a stream has been written completely or is abandoned."""

    def __len__(self) -> int:
        return len(self._streams)

    def tick(self) -> None:
        """Call it once a second."""
        latest_s = time.monotonic() - self._keepalive_s
        for stream in self._streams:
            if stream.wrote_s <= latest_s or stream.has_moved():
                stream.wake()

    @contextlib.contextmanager
    def hold(self, stream: "EventStream") -> Generator[None, None, None]:
        self._streams.add(stream)
        try:
            yield
        finally:
            self._streams.discard(stream)
            self.on_end()

    def num_unwritten(self) -> int:
        """Number of streams that can still be written to their end: their clients read, even if slowly."""
        latest_s = time.monotonic() - READ_PATIENCE_S
        return sum(not stream.is_writing or stream.wrote_s > latest_s for stream in self._streams)

    def find_blocked(self) -> dict[int, float]:
        """Returns the seconds that responses have waited for their clients to read, by the uids of their choices."""
        now_s = time.monotonic()
        return {uid: now_s - stream.wrote_s for stream in self._streams if stream.is_writing for uid in stream.uids()}

    def is_silent(self, stream: "EventStream") -> bool:
        return time.monotonic() - stream.wrote_s >= self._keepalive_s


@dataclass(eq=False)
class EventStream:
    """An ASGI response that writes the events of `choices`, which share `changed`, as they arrive.

    The head is sent with the first event, so that a refusal is a plain HTTP error, or earlier after a long silence.
    An error of one choice ends the request. With `shows_progress`, comments have the request's place in the queue.
    """

    _service: Service
    _streams: OpenStreams
    _choices: Sequence[Generation]
    _events: EventWriter
    shows_progress: bool = field(default=False, kw_only=True)
    _is_behind: bool = False
    """More steps have arrived than fit one write."""
    _place: QueuePlace | None = None
    _comment: bytes = b""
    """To be written before the next tokens."""
    wrote_s: float = field(default_factory=time.monotonic)
    is_writing: bool = False
    """The stream is waiting for its client to read."""

    def __post_init__(self):
        self._running = list(self._choices)
        """Choices whose end has not been written."""

    def uids(self) -> list[int]:
        """Returns the choices whose end has not been written."""
        return [generation.uid for generation in self._running]

    def has_moved(self) -> bool:
        """Returns True if its place in the queue has changed and is to be shown. Call it once a second."""
        place = find_place(self._running) if self.shows_progress and not self.is_writing else None
        if place is None or place == self._place:
            return False
        self._place, self._comment = place, sse.comment("progress", place)
        return True

    def wake(self) -> None:
        self._choices[0].changed.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = trace_of(scope)
        with self._streams.hold(self), watched(self._service, self._choices, receive):
            try:
                await self._write_all(send, trace)
            except Exception as error:
                if not trace.status:
                    raise
                await write_body(send, self._events.fail(internal_error(log_internal(error))), is_last=True)

    async def _write_all(self, send: Send, trace: RequestTrace) -> None:
        changed = self._choices[0].changed
        is_last = False
        while not is_last:
            await changed.wait()
            if not _are_connected(self._running):
                return
            changed.clear()
            error = _error_of(self._running)
            if error is not None and not trace.status:
                raise RequestError(error)
            frames = self._next_frames()
            if self._is_behind:
                self.wake()
            else:
                is_last = error is not None or not self._running
                if is_last:
                    frames += self._events.close() if error is None else self._events.fail(error)
            if not frames:
                frames = self._comment or (self._events.keep_alive if self._streams.is_silent(self) else b"")
            self._comment = b""
            if not frames:
                continue
            if not trace.status:
                await write_head(send, trace, self._events.content_type)
            self.wrote_s = time.monotonic()
            self.is_writing = True
            if self._events.splits_lines:
                await self._write_lines(send, frames.splitlines(keepends=True), is_last=is_last)
            else:
                await write_body(send, frames, is_last=is_last)
            self.is_writing = False

    async def _write_lines(self, send: Send, lines: list[bytes], *, is_last: bool) -> None:
        for index, line in enumerate(lines, 1):
            is_end = is_last and index == len(lines)
            await write_body(send, line, is_last=is_end)
            if not is_end:
                await asyncio.sleep(LINE_PAUSE_S)

    def _next_frames(self) -> bytes:
        """Takes the steps that have arrived, up to the limit of one write, and returns their events."""
        frames = b""
        running: list[Generation] = []
        self._is_behind = False
        for generation in self._running:
            num_left = max(1, MAX_STEPS_A_WRITE // len(self._running))
            while generation.has_step and num_left:
                frames += self._events.tokens(generation)
                num_left -= 1
            final = generation.final
            if generation.has_step:
                self._is_behind = True
            elif final is not None and final.error is None:
                frames += self._events.end(generation, final)
                continue
            running.append(generation)
        self._running = running
        return frames


@dataclass(frozen=True)
class WholeReply:
    """An ASGI response that waits for the end of all `choices` and then sends the JSON document from `content`.

    `check` is called with each choice that has ended, as in `wait_for_ends`. `work` runs first; it ends
    choices that consist of parts (`Service.open_part`).
    """

    service: Service
    choices: Sequence[Generation]
    content: Callable[[], Any]
    check: Callable[[int, Generation], None] = raise_error
    work: Callable[[], Awaitable[object]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with watched(self.service, self.choices, receive):
            if self.work is not None:
                await self.work()
            if await wait_for_ends(self.choices, self.check):
                content = await make_document(self.content, self.choices)
                timing = (SERVER_TIMING_HEADER, server_timing(self.choices))
                await JsonReply(content, headers=(timing,))(scope, receive, send)


@contextlib.contextmanager
def watched(service: Service, choices: Iterable[Generation], receive: Receive) -> Generator[None, None, None]:
    """Aborts the choices as soon as their client leaves; at the end of the block, aborts those that have not ended."""

    def leave() -> None:
        for generation in choices:
            service.leave(generation)

    watcher = asyncio.create_task(_watch(leave, receive))
    try:
        yield
    finally:
        watcher.cancel()
        leave()


async def write_until_gone(writing: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Runs `writing` until it ends or the client has left. Propagates its exceptions."""
    with contextlib.suppress(ClientDisconnect):
        await finish_unless_gone(writing, receive)


async def finish_unless_gone(work: Coroutine[Any, Any, T], receive: Receive | None) -> T:
    """Returns the result of `work`. Cancels it and raises `ClientDisconnect` if the client leaves.

    Without `receive` it cannot leave.
    """
    task = asyncio.create_task(work)
    leaving = None if receive is None else asyncio.create_task(wait_until_gone(receive))
    try:
        await asyncio.wait([task, leaving] if leaving else [task], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        if leaving:
            leaving.cancel()


async def take_images(service: Service, parts: Sequence[ImagePart], trace: RequestTrace) -> tuple[ImageInput, ...]:
    """Stores and checks the images of a request. Raises `RequestError` and `ClientDisconnect`."""
    return await finish_unless_gone(service.images.take(parts, trace), trace.receive) if parts else ()


async def wait_until_gone(receive: Receive) -> None:
    """Waits until the client has left; drops further input."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _watch(leave: Callable[[], None], receive: Receive) -> None:
    await wait_until_gone(receive)
    leave()


def _error_of(choices: Iterable[Generation]) -> ErrorInfo | None:
    for generation in choices:
        if generation.final is not None and generation.final.error is not None:
            return generation.final.error
    return None


def _are_connected(choices: Iterable[Generation]) -> bool:
    for generation in choices:  # noqa: SIM110 (a third of the time of `all`; this runs once a token)
        if not generation.has_listener:
            return False
    return True


async def write_head(send: Send, trace: RequestTrace, content_type: bytes = sse.CONTENT_TYPE) -> None:
    trace.status = 200
    headers = [
        (b"content-type", content_type),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
        *trace.reply_headers,
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def write_body(send: Send, body: bytes, *, is_last: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not is_last})
