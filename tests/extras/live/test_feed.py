"""The feed by itself: all viewers get the same samples, and without viewers it does nothing."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from extras.live import feed as feed_module
from extras.live.feed import LiveFeed
from extras.live.stream import LiveStream
from frontend.errors import UnavailableError
from frontend.http.stream import OpenStreams
from frontend.links.peers import Replies
from frontend.links.processes import ProcessView
from frontend.requests.recent_steps import RecentSteps
from frontend.requests.timelines import Timelines
from frontend.requests.trace import RequestTrace
from messages.control.processes import ProcessStatus, ProcessTable

LIMIT_S = 60.0


class Watched:
    """A feed on a service whose processes the test shows; `num_samples` counts what the frontend did for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(feed_module, "INTERVAL_S", 0.001)
        self.num_samples = 0
        self.processes = ProcessView()
        self.show("ready")
        service: Any = SimpleNamespace(
            processes=self.processes,
            timelines=Timelines(lambda uid: None),
            recent_steps=RecentSteps(),
            peers=SimpleNamespace(register=lambda *_: None, ask_all=self._ask_all),
            name="frontend",
        )
        self.feed = LiveFeed(service, OpenStreams(15.0))

    def show(self, state: Any) -> None:
        self.processes.update(ProcessTable((ProcessStatus("tokenizer", state), ProcessStatus("scheduler", "ready"))))

    async def _ask_all(self, *question: object) -> Replies[Any]:
        self.num_samples += 1
        return Replies({}, 0)


def run(monkeypatch: pytest.MonkeyPatch, test: Callable[[Watched], Any]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test(Watched(monkeypatch))

    asyncio.run(limited())


def test_where_no_one_looks_nothing_runs(monkeypatch: pytest.MonkeyPatch):
    async def test(watched: Watched) -> None:
        own = asyncio.all_tasks()
        with watched.feed.viewing() as samples:
            await anext(samples)
            assert len(asyncio.all_tasks()) == len(own) + 1
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == own
        assert len(watched.feed) == 0
        num_samples = watched.num_samples
        await asyncio.sleep(0.02)
        assert watched.num_samples == num_samples

    run(monkeypatch, test)


def test_a_second_viewer_costs_no_second_sample_and_sees_the_same(monkeypatch: pytest.MonkeyPatch):
    async def test(watched: Watched) -> None:
        with watched.feed.viewing() as first:
            state = await anext(first)
            with watched.feed.viewing() as second:
                num_samples = watched.num_samples
                assert (await anext(second)).processes == state.processes
                assert watched.num_samples == num_samples
                watched.show("hung")
                while (await anext(second)).processes["tokenizer"].state != "hung":
                    pass
            while (await anext(first)).processes["tokenizer"].state != "hung":
                pass

    run(monkeypatch, test)


def test_viewers_are_few_and_all_leave_when_the_server_drains(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feed_module, "MAX_VIEWERS", 1)

    async def test(watched: Watched) -> None:
        with watched.feed.viewing() as samples:
            await anext(samples)
            with pytest.raises(UnavailableError), watched.feed.viewing():
                pass
            watched.feed.end()
            assert [state async for state in samples] == []
        with pytest.raises(UnavailableError, match="draining"), watched.feed.viewing():
            pass

    run(monkeypatch, test)


def test_a_sample_that_fails_ends_the_streams_and_the_next_viewer_begins_anew(monkeypatch: pytest.MonkeyPatch):
    async def test(watched: Watched) -> None:
        with watched.feed.viewing() as samples:
            await anext(samples)
            monkeypatch.setattr(feed_module, "make_process", lambda *_: 1 / 0)
            async for _ in samples:
                pass
        monkeypatch.undo()
        with watched.feed.viewing() as samples:
            assert (await anext(samples)).processes

    run(monkeypatch, test)


def test_a_client_that_does_not_read_is_owed_one_event_only(monkeypatch: pytest.MonkeyPatch):
    """Then one event has all changes since the last one."""

    async def test(watched: Watched) -> None:
        sent: list[bytes] = []
        room, wants = asyncio.Event(), asyncio.Event()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                sent.append(message["body"])
                wants.set()
                await room.wait()

        leave: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        scope: Any = {"type": "http", "method": "GET", "path": "/live", "headers": []}
        scope["sluice.trace"] = RequestTrace(scope)
        serving = asyncio.create_task(LiveStream(watched.feed)(scope, lambda: leave, send))
        await wants.wait()
        for state in ("hung", "restarting", "starting"):
            watched.show(state)
            num_samples = watched.num_samples
            while watched.num_samples < num_samples + 2:
                await asyncio.sleep(0.001)
        assert len(sent) == 1
        wants.clear()
        room.set()
        await wants.wait()
        assert b'"state":"starting"' in sent[1]
        assert b'"scheduler"' not in sent[1], "it has not changed"
        leave.set_result({"type": "http.disconnect"})
        await serving
        assert len(watched.feed) == 0

    run(monkeypatch, test)
