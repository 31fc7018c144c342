"""The tokenizer's unanswered messages. Short texts come first; aborted ones are dropped."""

import time
from collections import deque
from collections.abc import Callable, Sized
from heapq import heappop, heappush
from itertools import count

from messages.columns import num_int32
from messages.ring.replies import Usage, UserReply
from messages.ring.requests import AbortMsg, DecodeMsg, DropBefore, EncodeMsg, TokenizeMsg
from messages.ring.uids import GoneRequests

LONG_TEXT_CHARS = 100_000
"""Shorter texts precede one of this length, which takes about a tenth of a second."""

Text = TokenizeMsg | EncodeMsg | DecodeMsg


class Entry:
    """A message, and the uids of its requests that are still open."""

    def __init__(self, message: Text):
        self.message = message
        self.group = message.group or message.uid if isinstance(message, TokenizeMsg) else message.uid
        self.num_chars = num_chars_of(message)
        self.arrived_s = time.monotonic()
        self.requested = dict.fromkeys(uids_of(message))

    @property
    def is_long(self) -> bool:
        return self.num_chars >= LONG_TEXT_CHARS or (isinstance(self.message, TokenizeMsg) and self.message.is_long)


class Turns:
    """Entries in order of arrival, but of each HTTP request one at a time while others have some."""

    def __init__(self) -> None:
        self._by_group: dict[int, deque[Entry]] = {}

    def __len__(self) -> int:
        return len(self._by_group)

    def append(self, entry: Entry) -> None:
        self._by_group.setdefault(entry.group, deque()).append(entry)

    def pop(self) -> Entry:
        group, entries = next(iter(self._by_group.items()))
        del self._by_group[group]
        entry = entries.popleft()
        if entries:
            self._by_group[group] = entries  # the last one now
        return entry


class Backlog:
    """Short texts are popped by turns of HTTP requests, long ones shortest first. An entry stays open until `done`."""

    def __init__(self) -> None:
        self._short = Turns()
        self._long: list[tuple[int, int, Entry]] = []
        self._numbers = count()
        self._open: dict[Entry, None] = {}
        """In order of arrival."""
        self._by_uid: dict[int, Entry] = {}
        self._gone = GoneRequests()

    @property
    def has_short(self) -> bool:
        return bool(self._short)

    @property
    def has_long(self) -> bool:
        return bool(self._long)

    def gauges(self) -> dict[str, float]:
        """Returns the number of open characters and the age of the oldest entry."""
        oldest = next(iter(self._open), None)
        return {
            "chars_in_hand": sum(entry.num_chars for entry in self._open),
            "waiting_s": 0.0 if oldest is None else round(time.monotonic() - oldest.arrived_s, 3),
        }

    def add(self, message: Text) -> None:
        """Adds a message. It supersedes earlier attempts of its requests, whose replies the frontend would drop."""
        entry = Entry(message)
        for uid in entry.requested:
            earlier = self._by_uid.get(uid)
            if earlier is not None:
                del earlier.requested[uid]
            self._by_uid[uid] = entry
        self._open[entry] = None
        if entry.is_long:
            heappush(self._long, (entry.num_chars, next(self._numbers), entry))
        else:
            self._short.append(entry)

    def abort(self, message: AbortMsg) -> UserReply | None:
        """Removes a request and returns its final reply, `None` if it is not here."""
        entry = self._by_uid.get(message.uid)
        if entry is None or not isinstance(entry.message, TokenizeMsg) or entry.message.attempt != message.attempt:
            return None
        del entry.requested[message.uid], self._by_uid[message.uid]
        usage = Usage(completion_tokens=num_int32(entry.message.output_ids))
        return UserReply(message.uid, message.attempt, message.reason, usage=usage, stamps=entry.message.stamps)

    def forget(self, drop: DropBefore) -> None:
        """Drops the requests of frontends that are gone, without replies."""
        self._gone.record(drop)
        for uid in [uid for uid in self._by_uid if self._gone.has(uid)]:
            del self._by_uid.pop(uid).requested[uid]

    def pop_short(self) -> Entry | None:
        """Returns the next short text whose requests are open, `None` if there is none."""
        return self._pop(self._short, self._short.pop)

    def pop_long(self) -> Entry | None:
        """Returns the shortest long text whose requests are open, `None` if there is none."""
        return self._pop(self._long, lambda: heappop(self._long)[2])

    def _pop(self, queue: Sized, pop: Callable[[], Entry]) -> Entry | None:
        while queue:
            entry = pop()
            if entry.requested:
                return entry
            self.done(entry)
        return None

    def done(self, entry: Entry) -> None:
        """Removes an entry that has been answered."""
        del self._open[entry]
        for uid in entry.requested:
            del self._by_uid[uid]


def uids_of(message: Text) -> tuple[int, ...]:
    """Returns the uids of a message's requests, or of its call."""
    if isinstance(message, TokenizeMsg):
        return (message.uid, *(sibling.uid for sibling in message.siblings))
    return (message.uid,)


def num_chars_of(message: Text) -> int:
    """Returns an estimate of the characters to process, 0 for a prompt of ids."""
    if isinstance(message, DecodeMsg):
        return len(message.token_ids)
    num_chars = len(message.prompt_text or "") + (len(message.chat.messages) if message.chat else 0)
    return num_chars + (message.infill.num_chars if isinstance(message, TokenizeMsg) and message.infill else 0)
