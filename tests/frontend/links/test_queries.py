import asyncio
from typing import Any, cast

import pytest

from frontend.errors import UnavailableError
from frontend.links import queries
from frontend.links.processes import ProcessView
from frontend.links.queries import Queries
from messages.columns import pack_int32
from messages.ring.cache import CacheExplained, ExplainCache
from messages.ring.replies import CacheFlushed, DecodeReply
from messages.ring.requests import DecodeMsg, FlushCache
from tests.frontend.frontend_run import table, table_after, with_engine


class FakeRing:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Opened:
    def __init__(self, hold_s: float = 0.0) -> None:
        self.ring = FakeRing()
        self.processes = ProcessView()
        self.processes.update(table())
        uids = iter(range(1, 1000))
        self.queries = Queries(cast("Any", self.ring), self.processes, lambda: next(uids), hold_s)
        self.queries.follow()


def test_answers_find_their_questions_in_any_order():
    async def run() -> None:
        opened = Opened()
        first = asyncio.create_task(opened.queries.decode(pack_int32([5])))
        second = asyncio.create_task(opened.queries.flush_cache(is_forced=True))
        while len(opened.ring.sent) < 2:
            await asyncio.sleep(0)
        assert opened.ring.sent == [DecodeMsg(1, pack_int32([5])), FlushCache(2, True)]
        opened.queries.accept(CacheFlushed(2, 7))
        opened.queries.accept(DecodeReply(1, "a"))
        opened.queries.accept(DecodeReply(1, "again"))
        assert (await first, (await second).num_pages) == ("a", 7)
        opened.queries.accept(DecodeReply(1, "late"))
        assert len(opened.queries) == 0

    asyncio.run(run())


def test_no_answer_is_a_503(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queries, "QUERY_TIMEOUT_S", 0.01)

    async def run() -> None:
        opened = Opened()
        with pytest.raises(UnavailableError) as error:
            await opened.queries.decode(b"")
        assert error.value.info.code == "call_timeout"
        assert len(opened.queries) == 0

    asyncio.run(run())


def test_pending_questions_are_bounded_and_asked_again_of_a_successor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queries, "MAX_PENDING", 1)

    async def run() -> None:
        opened = Opened()
        asked = asyncio.create_task(opened.queries.decode(b""))
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="1 calls are waiting"):
            await opened.queries.decode(b"")
        opened.queries.follow()
        assert len(opened.ring.sent) == 1
        opened.processes.update(table(tokenizer="restarting"))
        opened.queries.follow()
        assert len(opened.ring.sent) == 1
        with pytest.raises(UnavailableError, match="tokenizer is restarting"):
            await opened.queries.decode(b"")
        opened.processes.update(table_after({"tokenizer": 2}))
        opened.queries.follow()
        assert len(opened.ring.sent) == 2
        opened.queries.accept(DecodeReply(1, "a"))
        assert await asked == "a"

    asyncio.run(run())


def test_what_is_asked_while_a_process_is_replaced_waits_and_is_bounded_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queries, "MAX_PENDING", 1)

    async def run() -> None:
        opened = Opened(hold_s=300.0)
        opened.processes.update(table(tokenizer="restarting"))
        opened.queries.follow()
        asked = asyncio.create_task(opened.queries.decode(b""))
        await asyncio.sleep(0)
        assert (opened.ring.sent, len(opened.queries)) == ([], 1)
        with pytest.raises(UnavailableError, match="1 calls are waiting"):
            await opened.queries.decode(b"")
        opened.processes.update(table_after({"tokenizer": 2}))
        opened.queries.follow()
        async with asyncio.timeout(30):
            while not opened.ring.sent:
                await asyncio.sleep(0)
        opened.queries.accept(DecodeReply(1, "a"))
        assert await asked == "a"
        assert (len(opened.ring.sent), len(opened.queries)) == (1, 0)

    asyncio.run(run())


def test_a_question_that_has_waited_for_too_long_is_refused():
    async def run() -> None:
        opened = Opened(hold_s=0.01)
        opened.processes.update(table(tokenizer="restarting"))
        opened.queries.follow()
        with pytest.raises(UnavailableError, match="tokenizer is restarting"):
            await opened.queries.decode(b"")
        assert (opened.ring.sent, len(opened.queries)) == ([], 0)

    asyncio.run(run())


def test_every_engine_is_asked_to_empty_its_cache_and_the_one_with_most_of_a_prompt_answers_for_it():
    async def run() -> None:
        opened = Opened()
        opened.processes.update(with_engine(table()))
        flushing = asyncio.create_task(opened.queries.flush_cache(is_forced=False))
        explaining = asyncio.create_task(opened.queries.explain_cache(b"", ""))
        while len(opened.ring.sent) < 4:
            await asyncio.sleep(0)
        assert {(type(asked), asked.engine) for asked in opened.ring.sent} == {
            *((FlushCache, engine) for engine in (1, 2)),
            *((ExplainCache, engine) for engine in (1, 2)),
        }
        for asked in opened.ring.sent:
            if isinstance(asked, FlushCache):
                opened.queries.accept(CacheFlushed(asked.uid, 5 * asked.engine, asked.engine - 1))
            else:
                opened.queries.accept(CacheExplained(asked.uid, 16 * asked.engine, (), "not_cached", 32))
        assert await flushing == CacheFlushed(0, 15, 1)
        engine, explained = await explaining
        assert (engine, explained.num_hit_tokens) == (2, 32)

    asyncio.run(run())
