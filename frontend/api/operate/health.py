"""`/health`, `/health/generate`, `/ping` and `/load`: the state of every process, a probe, and the current load."""

import asyncio
import os
from collections.abc import Callable

import msgspec
from starlette.requests import Request

from frontend.errors import UnavailableError
from frontend.http.query import read_number
from frontend.http.responses import JsonReply
from frontend.links.processes import ProcessHealth, ServerState, StallHealth
from frontend.requests.generation import wait_for_ends
from frontend.requests.prompt_request import PromptRequest
from frontend.requests.timing import Timing, make_timing
from frontend.requests.trace import trace_of
from frontend.service import Service
from messages.ring.peers import CountOpen, OpenCount
from messages.ring.requests import SamplingParams

PROBE_TOKEN_ID = 0
"""A token id that every vocabulary has."""

PROBE_TIMEOUT_S = 10.0
MAX_PROBE_TIMEOUT_S = 300.0


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    status: ServerState
    processes: dict[str, ProcessHealth]
    stalls: list[StallHealth] = []
    """Current stalls; `--on-stall` decides what is done about them."""


class ProbeReply(msgspec.Struct, frozen=True):
    status: str
    uid: int
    timing: Timing


class LoadReply(msgspec.Struct, frozen=True):
    """`server_load` is the number of open requests. Values from the scheduler are those of its last beat."""

    server_load: int
    requests_running: int
    requests_waiting: int
    kv_cache_usage: float
    """The fraction of pages that requests use, in [0, 1]."""
    frontends_missing: int
    """Number of frontends that did not answer in time; `server_load` does not include their requests."""


class HealthApi:
    """`gauges` returns the sizes of the frontend's own maps and queues."""

    def __init__(self, service: Service, gauges: Callable[[], dict[str, float]]):
        self._service = service
        self._gauges = gauges
        service.peers.register(CountOpen, self._count)

    async def health(self, request: Request) -> JsonReply:
        """200 if requests can be served now, otherwise 503. Uses only local knowledge, so it never waits."""
        health = self.find_health()
        return JsonReply(health, 200 if health.status == "ready" else 503)

    def find_health(self) -> Health:
        """Returns the state of every process as this frontend knows it."""
        processes = self._service.processes.health()
        name = self._service.name
        processes[name] = ProcessHealth(
            state="ready",
            pid=os.getpid(),
            incarnation=self._service.incarnation,
            beat_age_s=0.0,
            gauges=self._gauges(),
            num_restarts=self._service.processes.num_restarts(name),
        )
        return Health(self._status(), processes, self._service.processes.stalls())

    def _status(self) -> ServerState:
        if self._service.admission.is_draining:
            return "draining"
        if self._service.processes.is_open:
            return "ready"
        return "unhealthy" if self._service.processes.has_started else "starting"

    async def ping(self, request: Request) -> JsonReply:
        """200 if `/health` is 200. Otherwise raises `UnavailableError` with the reason."""
        self._service.admission.check_open()
        return JsonReply({})

    async def generate(self, request: Request) -> JsonReply:
        """Generates one token through the ring. Raises `UnavailableError` if it takes longer than `timeout_s` (query).

        Does not wait for a process that is being replaced: the probe is about the present state.
        """
        query = request.query_params
        timeout_s = read_number(query, "timeout_s", PROBE_TIMEOUT_S, MAX_PROBE_TIMEOUT_S, least=0.001)
        params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        trace = trace_of(request.scope)
        self._service.admission.check_open()
        generation = self._service.open(PromptRequest([PROBE_TOKEN_ID], params), trace, is_streamed=False)
        try:
            async with asyncio.timeout(timeout_s):
                await wait_for_ends([generation])
        except TimeoutError:
            raise UnavailableError(f"no token came through the ring within {timeout_s:g} s", "probe_timeout") from None
        finally:
            self._service.leave(generation)
        timing = make_timing(generation.ended.stamps, num_tokens=1, seed=params.seed)
        return JsonReply(ProbeReply("ok", generation.uid, timing))

    async def load(self, request: Request) -> JsonReply:
        others = await self._service.peers.ask_all(CountOpen(), OpenCount)
        counts = (self._count(CountOpen()), *others.by_name.values())
        processes = self._service.processes
        return JsonReply(
            LoadReply(
                server_load=sum(count.num_requests for count in counts),
                requests_running=int(processes.num_running),
                requests_waiting=int(processes.num_waiting),
                kv_cache_usage=processes.kv_cache_usage,
                frontends_missing=others.num_missing,
            )
        )

    def _count(self, question: CountOpen) -> OpenCount:
        return OpenCount(len(self._service.registry))
