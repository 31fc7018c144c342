"""`GET /metrics`: what is counted, in the text format of Prometheus. It waits for no process."""

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from frontend.trace import REQUEST_ID_HEADER, trace_of


class MetricsApi:
    """`collectors` are asked at each scrape."""

    def __init__(self, *collectors: Collector):
        self._registry = CollectorRegistry(auto_describe=False)
        for collector in collectors:
            self._registry.register(collector)

    async def metrics(self, request: Request) -> Response:
        """In OpenMetrics where the client asks for it, else in the older text format."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        trace = trace_of(request.scope)
        trace.status = 200
        id_header = {REQUEST_ID_HEADER.decode(): trace.request_id}
        return Response(encode(self._registry), headers={**id_header, "content-type": content_type})
