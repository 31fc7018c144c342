"""The moment at which the peer of a half-closed connection is gone for good."""

import asyncio
import select
from collections.abc import Callable


class HangupWatch:
    """Calls `on_hangup` once the connection of socket `descriptor` is reset, until `close`.

    An event loop's own reader will not do: a socket that has been read to its end is readable for ever.
    Without epoll nothing is watched, and a write has to find out.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, on_hangup: Callable[[], None]):
        self._loop = loop
        self._on_hangup = on_hangup
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        if self._epoll is not None:
            self._epoll.register(descriptor, 0)  # EPOLLHUP and EPOLLERR are always reported
            loop.add_reader(self._epoll.fileno(), self._notice)

    def close(self) -> None:
        """May be called again."""
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _notice(self) -> None:
        self.close()
        self._on_hangup()
