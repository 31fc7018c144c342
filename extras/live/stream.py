"""`GET /live`: how the server is and what changes in it, as a stream of events."""

import time
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from extras.live.feed import LiveFeed
from extras.live.view import LiveState, make_event
from frontend.http import sse
from frontend.http.stream import write_body, write_head, write_until_gone
from frontend.requests.trace import trace_of


class LiveApi:
    def __init__(self, feed: LiveFeed):
        self._feed = feed

    async def watch(self, request: Request) -> "LiveStream":
        return LiveStream(self._feed)


class LiveStream:
    """An ASGI response that ends when its client leaves or the feed ends. Raises `UnavailableError` as that does."""

    def __init__(self, feed: LiveFeed):
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._feed.viewing() as samples:
            await write_head(send, trace_of(scope))
            if scope["method"] == "HEAD":
                await write_body(send, b"", is_last=True)
                return
            await write_until_gone(_write_events(send, samples), receive)


async def _write_events(send: Send, samples: AsyncGenerator[LiveState, None]) -> None:
    """One who does not read is waited for, and then gets what has changed meanwhile in one event."""
    before = LiveState()
    async for state in samples:
        if state != before:
            await write_body(send, sse.frame(make_event(before, state, time.monotonic_ns())), is_last=False)
            before = state
    await write_body(send, sse.DONE, is_last=True)
