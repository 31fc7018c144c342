"""`GET /load`: how much there is to do, for load balancers."""

import msgspec
from starlette.requests import Request

from frontend.hold import ON_HOLD
from frontend.http.responses import JsonReply
from frontend.processes import ProcessView
from frontend.service import Service
from messages.peers import CountOpen, OpenCount


class LoadReply(msgspec.Struct, frozen=True):
    """`server_load` is the number of open requests; what is known of the scheduler is as of its last beat."""

    server_load: int
    requests_running: int
    requests_waiting: int
    kv_cache_usage: float
    """Part of the pages that requests hold, in [0, 1]."""
    frontends_missing: int
    """Frontends that have not answered in time: `server_load` is without their requests."""


class LoadApi:
    def __init__(self, service: Service):
        self._service = service
        service.peers.take_on(CountOpen, self._count)

    async def load(self, request: Request) -> JsonReply:
        others = await self._service.peers.ask_all(CountOpen(), OpenCount)
        counts = (self._count(CountOpen()), *others.by_name.values())
        gauges = self._service.processes.gauges("scheduler")
        return JsonReply(
            LoadReply(
                server_load=sum(count.num_requests for count in counts),
                requests_running=int(gauges.get("running", 0)),
                requests_waiting=int(num_waiting(self._service.processes)),
                kv_cache_usage=kv_cache_usage(gauges),
                frontends_missing=others.num_missing,
            )
        )

    def _count(self, question: CountOpen) -> OpenCount:
        return OpenCount(len(self._service.registry))


def num_waiting(processes: ProcessView) -> float:
    """Returns how many requests wait: for a row, or in a frontend for a process that is being replaced."""
    on_hold = sum(front.gauges.get(ON_HOLD, 0.0) for front in processes.fronts())
    return processes.gauges("scheduler").get("waiting", 0.0) + on_hold


def kv_cache_usage(gauges: dict[str, float]) -> float:
    """Returns the part of all pages that running requests use, by the scheduler's gauges."""
    return gauges.get("pages_in_use", 0.0) / max(1.0, gauges.get("pages_all", 0.0))
