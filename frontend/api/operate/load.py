"""`GET /load`: the server's current load, for load balancers."""

import msgspec
from starlette.requests import Request

from frontend.http.responses import JsonReply
from frontend.service import Service
from messages.ring.peers import CountOpen, OpenCount


class LoadReply(msgspec.Struct, frozen=True):
    """`server_load` is the number of open requests. Values from the scheduler are those of its last beat."""

    server_load: int
    requests_running: int
    requests_waiting: int
    kv_cache_usage: float
    """The fraction of pages that requests use, in [0, 1]."""
    frontends_missing: int
    """Number of frontends that did not answer in time; `server_load` does not include their requests."""


class LoadApi:
    def __init__(self, service: Service):
        self._service = service
        service.peers.register(CountOpen, self._count)

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
