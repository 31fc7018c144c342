"""The responses that this frontend keeps in memory, limited by number and size."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field

import msgspec

from frontend.api.responses.items import Item
from frontend.api.responses.reply import Response
from messages.ring.peers import UsedResponse

_encoder = msgspec.json.Encoder()


@dataclass(eq=False)
class StoredResponse:
    """One response with the items that it answers. While it runs, `running` returns its state and `cancel` ends it.

    `frames`: its stream so far, `None` if it cannot be streamed again. `key`: the name of the key that it belongs to.
    """

    _items: InitVar[list[Item]]
    _running: Callable[[], Response] | None = None
    _cancel: Callable[[], None] | None = None
    frames: list[bytes] | None = None
    key: str = field(default="", kw_only=True)
    _response: bytes = b""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self, _items: list[Item]):
        self._input_items = _encoder.encode(_items)

    @property
    def has_ended(self) -> bool:
        return bool(self._response)

    @property
    def num_bytes(self) -> int:
        return len(self._input_items) + len(self._response) + sum(map(len, self.frames or ()))

    def show(self) -> UsedResponse:
        return UsedResponse(self._response or _encoder.encode(self._shown()), self._input_items)

    def _shown(self) -> Response:
        assert self._running is not None
        return self._running()

    def cancel(self) -> None:
        """Cancels a running response; has no effect on one that has ended."""
        if self._cancel is not None:
            cancelled = msgspec.structs.replace(self._shown(), status="cancelled")
            self._running = lambda: cancelled
            self._cancel()

    def grow(self, frames: list[bytes]) -> None:
        """Adds frames to the stream."""
        if self.frames is not None:
            self.frames += frames
            self._report()

    def end(self, response: Response) -> None:
        self._response = _encoder.encode(response)
        self._running = self._cancel = None
        self._report()

    def _report(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait(self) -> None:
        """Waits for the next change. Do not call it after the end."""
        await self._changed.wait()


class ResponseStore:
    """Evicts the least recently used ended responses first. Admission limits the number of running ones."""

    def __init__(self, max_responses: int, max_bytes: int):
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._running: dict[str, StoredResponse] = {}
        self._ended: OrderedDict[str, StoredResponse] = OrderedDict()
        self._num_bytes = 0
        """Total size of the ended responses."""

    @property
    def is_used(self) -> bool:
        return self._max_responses > 0

    def __len__(self) -> int:
        return len(self._running) + len(self._ended)

    def add_running(self, response_id: str, stored: StoredResponse) -> None:
        self._running[response_id] = stored

    def end(self, response: Response, stored: StoredResponse) -> None:
        """Ends a running response. It is stored unless it was removed in the meantime."""
        stored.end(response)
        if self._running.pop(response.id, None) is not None:
            self._keep(response.id, stored)

    def add(self, response: Response, items: list[Item], key: str = "") -> None:
        """Stores a response that has ended."""
        stored = StoredResponse(items, key=key)
        stored.end(response)
        self._keep(response.id, stored)

    def _keep(self, response_id: str, stored: StoredResponse) -> None:
        if stored.num_bytes > self._max_bytes:
            return
        self._ended[response_id] = stored
        self._num_bytes += stored.num_bytes
        while len(self._ended) > self._max_responses or self._num_bytes > self._max_bytes:
            self._num_bytes -= self._ended.popitem(last=False)[1].num_bytes

    def find(self, response_id: str, only_of: str | None = None) -> StoredResponse | None:
        """Returns the response; with `only_of`, only if it belongs to that key."""
        found = self._running.get(response_id) or self._ended.get(response_id)
        if found is None or only_of not in (None, found.key):
            return None
        if response_id in self._ended:
            self._ended.move_to_end(response_id)
        return found

    def remove(self, response_id: str) -> None:
        self._running.pop(response_id, None)
        removed = self._ended.pop(response_id, None)
        if removed is not None:
            self._num_bytes -= removed.num_bytes
