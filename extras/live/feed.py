"""The samples of the live view: taken only while it is open, once for all viewers."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Generator

import msgspec

from extras.live.traffic import EdgeRates, ProcessCosts
from extras.live.view import LiveRequest, LiveState, make_process
from frontend.api.operate.request_view import find_facts
from frontend.api.operate.wait_reasons import Waiting, WaitReasons
from frontend.errors import UnavailableError
from frontend.http.responses import log_internal
from frontend.http.stream import OpenStreams
from frontend.requests.generation import Generation
from frontend.requests.recent_steps import join_steps
from frontend.requests.timeline import Timeline
from frontend.service import Service
from messages.ring.peers import LiveReport, ReportLive

INTERVAL_S = 0.2
MAX_VIEWERS = 16
MAX_OPEN, MAX_ENDED = 100, 20
"""Requests of each frontend that are shown."""

Requests = dict[str, LiveRequest]

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Requests)


class LiveFeed:
    """Samples the server `1 / INTERVAL_S` times a second while there are viewers."""

    def __init__(self, service: Service, streams: OpenStreams):
        self._service = service
        self._streams = streams
        self._state = LiveState()
        self._sampled = asyncio.Event()
        self._sampler: asyncio.Task[None] | None = None
        self._num_viewers = 0
        self._is_over = False
        service.peers.register(ReportLive, lambda question: self._report())

    def __len__(self) -> int:
        return self._num_viewers

    def end(self) -> None:
        """Lets all viewers go, and takes no more."""
        self._is_over = True
        self._stop()

    @contextlib.contextmanager
    def viewing(self) -> Generator[AsyncGenerator[LiveState, None], None, None]:
        """Gives the samples from now on, of which one who is slow misses some; they end with the feed.

        Raises `UnavailableError` if there are too many viewers, and once the feed has ended.
        """
        if self._is_over:
            raise UnavailableError("this frontend is draining", "draining", 1)
        if self._num_viewers >= MAX_VIEWERS:
            raise UnavailableError(f"{MAX_VIEWERS} clients watch already", "too_many_viewers")
        self._num_viewers += 1
        if self._sampler is None:
            self._sampler = asyncio.create_task(self._run())
        try:
            yield self._samples()
        finally:
            self._num_viewers -= 1
            if not self._num_viewers:
                self._stop()

    async def _samples(self) -> AsyncGenerator[LiveState, None]:
        while True:
            sampled = self._sampled
            if self._state.processes:
                yield self._state
            if self._sampler is None:
                return
            await sampled.wait()

    def _stop(self) -> None:
        if self._sampler is not None:
            self._sampler.cancel()
        self._sampler = None
        self._state = LiveState()
        self._wake()

    def _wake(self) -> None:
        self._sampled.set()
        self._sampled = asyncio.Event()

    async def _run(self) -> None:
        rates, costs = EdgeRates(), ProcessCosts()
        try:
            while True:
                with contextlib.suppress(UnavailableError):  # too many calls wait for other frontends
                    self._state = await self._sample(rates, costs)
                    self._wake()
                await asyncio.sleep(INTERVAL_S)
        except Exception as error:
            log_internal(error)
            self._stop()

    async def _sample(self, rates: EdgeRates, costs: ProcessCosts) -> LiveState:
        others = await self._service.peers.ask_all(ReportLive(), LiveReport)
        reports = [self._report(), *others.by_name.values()]
        statuses = self._service.processes.statuses()
        cost_of = costs.update(statuses)
        return LiveState(
            processes={status.name: make_process(status, cost_of.get(status.pid)) for status in statuses},
            edges=rates.update(statuses),
            requests={uid: shown for report in reports for uid, shown in _decoder.decode(report.requests).items()},
            steps=join_steps(
                (plan for report in reports for plan in report.plans),
                (end for report in reports for end in report.ends),
            ),
            num_open=sum(report.num_open for report in reports),
            frontends_missing=others.num_missing,
        )

    def _report(self) -> LiveReport:
        """Returns what this frontend knows."""
        timelines, reasons = self._service.timelines, WaitReasons(self._service, self._streams)
        frontend = self._service.name
        requests: Requests = {}
        for generation in timelines.live()[:MAX_OPEN]:
            waits = reasons.find(generation)
            if waits is not None:
                waits = msgspec.structs.replace(waits, heard_s=None)  # it would differ each time
            requests[str(generation.uid)] = _live_request(generation.timeline, frontend, generation, waits)
        for timeline in itertools.islice(timelines.ended(), MAX_ENDED):
            requests[str(timeline.uid)] = _live_request(timeline, frontend)
        return LiveReport(timelines.num_live, _encoder.encode(requests), *self._service.recent_steps.watch())


def _live_request(
    timeline: Timeline, frontend: str, generation: Generation | None = None, waits: Waiting | None = None
) -> LiveRequest:
    return LiveRequest(
        **find_facts(timeline, generation, waits, frontend),
        begin_ns=timeline.received_ns,
        stage_begin_ns=timeline.stage_begin_ns,
        end_ns=timeline.end_ns,
    )
