"""A load is bounded in number and time, keeps its concurrency or its clock, and leaves what it has measured."""

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

from benchmarks.load.answer import OK, UNFINISHED, UNREACHABLE
from benchmarks.load.connection import Target
from benchmarks.load.drive import MAX_CONNECT_FAILURES, Limits, Load
from benchmarks.load.paced_server import PacedServer
from benchmarks.load.workloads import PlannedRequest, SamplingFields

STEP_S = 0.002
SAMPLING = SamplingFields()


def requests(num_output: int = 5, interval_s: float = 0.0) -> Iterator[PlannedRequest]:
    at_s = 0.0
    while True:
        yield PlannedRequest([1, 2, 3], num_output, at_s)
        at_s += interval_s


def with_server(scenario: Callable[[PacedServer, Target], Awaitable[None]]) -> None:
    async def run() -> None:
        server = PacedServer(STEP_S)
        target = Target("127.0.0.1", await server.start())
        try:
            async with asyncio.timeout(30):
                await scenario(server, target)
        finally:
            await server.stop()

    asyncio.run(run())


def test_a_closed_loop_sends_all_requests_and_keeps_its_concurrency() -> None:
    most = 0
    ended: list[str] = []

    async def scenario(server: PacedServer, target: Target) -> None:
        nonlocal most
        load = Load(target, SAMPLING, Limits(23, 30))
        load.on_end = lambda result: ended.append(result.outcome)
        running = asyncio.create_task(load.closed_loop(requests(), 4))
        while not running.done():
            most = max(most, server.num_streams)
            await asyncio.sleep(0)
        results = load.measurement.results
        assert [result.outcome for result in results] == [OK] * 23 == ended
        assert all(result.num_tokens == 5 == len(result.arrivals_ns) for result in results)
        assert load.measurement.seconds >= 6 * 5 * STEP_S
        assert load.measurement.client_cpu_s > 0

    with_server(scenario)
    assert most == 4


def test_an_open_loop_sends_at_the_planned_times_whatever_runs() -> None:
    async def scenario(server: PacedServer, target: Target) -> None:
        load = Load(target, SAMPLING, Limits(6, 30))
        await load.open_loop(requests(num_output=100, interval_s=0.02))
        results = load.measurement.results
        assert [result.outcome for result in results] == [OK] * 6
        for index, result in enumerate(results):
            sent_s = (result.begin_ns - results[0].begin_ns) / 1e9
            assert sent_s >= index * 0.02 - results[0].late_s - 1e-3
        assert results[-1].begin_ns < results[0].end_ns, "the loop does not wait for answers"

    with_server(scenario)


def test_no_request_begins_after_max_seconds_and_those_that_run_may_end() -> None:
    async def scenario(server: PacedServer, target: Target) -> None:
        for loop in ("closed", "open"):
            load = Load(target, SAMPLING, Limits(1_000_000, 0.1))
            if loop == "closed":
                await load.closed_loop(requests(), 2)
            else:
                await load.open_loop(requests(interval_s=0.01))
            results = load.measurement.results
            assert 1 <= len(results) < 1000
            assert {result.outcome for result in results} == {OK}
            begin_ns = results[0].begin_ns
            assert all(result.begin_ns - begin_ns < 2e9 for result in results)

    with_server(scenario)


def test_cutting_off_keeps_what_has_been_measured() -> None:
    async def scenario(server: PacedServer, target: Target) -> None:
        load = Load(target, SAMPLING, Limits(100, 30))
        has_ended = asyncio.Event()
        load.on_end = lambda result: has_ended.set()

        def mixed() -> Iterator[PlannedRequest]:
            yield PlannedRequest([1], 2)
            yield from requests(num_output=100_000)

        running = asyncio.create_task(load.closed_loop(mixed(), 3))
        await has_ended.wait()
        while server.num_streams < 3:
            await asyncio.sleep(0)
        load.cut_off()
        await running
        outcomes = Counter(result.outcome for result in load.measurement.results)
        assert outcomes == {OK: 1, UNFINISHED: 3}
        assert load.measurement.is_cut_off
        assert load.measurement.seconds > 0
        while server.num_streams:
            await asyncio.sleep(STEP_S)

    with_server(scenario)


def test_a_server_that_is_gone_ends_the_run() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        load = Load(Target("127.0.0.1", unused.getsockname()[1]), SAMPLING, Limits(100_000, 30))
        asyncio.run(load.closed_loop(requests(), 1))
    assert [result.outcome for result in load.measurement.results] == [UNREACHABLE] * MAX_CONNECT_FAILURES
