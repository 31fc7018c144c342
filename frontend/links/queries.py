"""Questions to processes of the ring, other than generations; each is pending until its single reply."""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec

from frontend.errors import UnavailableError
from frontend.links.processes import ProcessView
from frontend.links.ring import Ring
from messages.errors import ChannelFullError, RequestError
from messages.ring.cache import CacheAnswer, CacheExplained, CacheListed, CacheQuestion, ExplainCache, ListCache
from messages.ring.replies import CacheFlushed, DecodeReply, EncodeReply
from messages.ring.requests import DecodeMsg, EncodeMsg, FlushCache

QUERY_TIMEOUT_S = 30.0
MAX_PENDING = 256

Question = EncodeMsg | DecodeMsg | FlushCache | CacheQuestion
Answer = EncodeReply | DecodeReply | CacheFlushed | CacheAnswer
A = TypeVar("A", EncodeReply, DecodeReply, CacheFlushed, CacheExplained, CacheListed)

log = logging.getLogger("sluice.frontend")


class Queries:
    """The pending questions by uid. If the process that had a question dies, its successor is asked again."""

    def __init__(self, ring: Ring, processes: ProcessView, next_uid: Callable[[], int], restart_hold_s: float = 0.0):
        self._ring = ring
        self._processes = processes
        self._next_uid = next_uid
        self._restart_hold_s = restart_hold_s
        self._has_opened = asyncio.Event()
        """Set while questions may enter."""
        self._num_waiting = 0
        """Number of questions that wait for a process that is being replaced."""
        self._pending: dict[int, tuple[Question, asyncio.Future[Answer]]] = {}
        self._known: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._pending) + self._num_waiting

    async def encode(self, question: EncodeMsg) -> EncodeReply:
        """Returns the token ids for `question`, which gets a uid here. Raises `RequestError`."""
        return await self._ask(msgspec.structs.replace(question, uid=self._next_uid()), EncodeReply)

    async def decode(self, token_ids: bytes) -> str:
        """Returns the text of int32 `token_ids`. Raises `RequestError`."""
        return (await self._ask(DecodeMsg(self._next_uid(), token_ids), DecodeReply)).text

    async def flush_cache(self, *, is_forced: bool) -> CacheFlushed:
        """Empties the prefix caches of all schedulers. Returns the summed results. Raises `UnavailableError`."""
        questions = [FlushCache(self._next_uid(), is_forced, engine) for engine in self._engines()]
        answers = await asyncio.gather(*[self._ask(question, CacheFlushed) for question in questions])
        return CacheFlushed(
            0, sum(answer.num_pages for answer in answers), sum(answer.num_requests for answer in answers)
        )

    async def explain_cache(self, input_ids: bytes, cache_salt: str) -> tuple[int, CacheExplained]:
        """Returns the scheduler that has cached most of int32 `input_ids`, including its tiers, and its explanation.

        Raises `UnavailableError`.
        """
        engines = self._engines()
        questions = [ExplainCache(self._next_uid(), input_ids, cache_salt, engine) for engine in engines]
        answers = await asyncio.gather(*[self._ask(question, CacheExplained) for question in questions])
        return max(zip(engines, answers, strict=True), key=lambda one: _num_cached_tokens(one[1]))

    async def list_cache(self, limit: int, engine: int) -> CacheListed:
        """Returns the largest nodes of the prefix cache of a scheduler. Raises `UnavailableError`."""
        return await self._ask(ListCache(self._next_uid(), limit, engine), CacheListed)

    def _engines(self) -> tuple[int, ...]:
        return self._processes.open_engines() or (1,)

    def accept(self, answer: Answer) -> None:
        """Passes `answer` to its caller. Repeated and late answers are dropped."""
        entry = self._pending.get(answer.uid)
        if entry is not None and not entry[1].done():
            entry[1].set_result(answer)

    def follow(self) -> None:
        """Call this after each process table: once all processes serve again, pending questions are repeated."""
        if self._processes.is_open:
            self._has_opened.set()
        else:
            self._has_opened.clear()
        if not self._processes.is_ready:
            return
        known, self._known = self._known, self._processes.serving()
        if known and known != self._known:
            self.repeat()

    def repeat(self) -> None:
        """Asks all pending questions again, because a process or a frame was lost."""
        for question, _ in list(self._pending.values()):
            self._send(question)

    async def _ask(self, question: Question, kind: type[A]) -> A:
        """Returns the answer. Raises `RequestError` if it has an error, and `UnavailableError`."""
        self._processes.check_ready(self._restart_hold_s)
        if len(self) >= MAX_PENDING:
            raise UnavailableError(f"{MAX_PENDING} calls are waiting for an answer", "too_many_calls", 1)
        await self._wait_until_open()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending[question.uid] = (question, future)
        try:
            self._send(question)
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                answer = await future
        except TimeoutError:
            raise UnavailableError(f"no answer came within {QUERY_TIMEOUT_S:g} s", "call_timeout") from None
        finally:
            del self._pending[question.uid]
        assert isinstance(answer, kind)
        if isinstance(answer, EncodeReply | DecodeReply) and answer.error is not None:
            raise RequestError(answer.error)
        return answer

    async def _wait_until_open(self) -> None:
        """Waits until questions may enter. Raises `UnavailableError` at the end of the hold."""
        self._num_waiting += 1
        try:
            async with asyncio.timeout(self._restart_hold_s):
                while not self._processes.is_open:
                    await self._has_opened.wait()
        except TimeoutError:
            raise self._processes.not_ready() from None
        finally:
            self._num_waiting -= 1

    def _send(self, question: Question) -> None:
        try:
            self._ring.send(question)
        except ChannelFullError as error:
            log.error("%s was not sent: %s", type(question).__name__, error)


def _num_cached_tokens(answer: CacheExplained) -> int:
    return answer.num_hit_tokens + sum(answer.tier_tokens.values())
