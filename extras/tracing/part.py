"""Traces in a frontend: from the end of a request to the queue of spans, and their metric."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from extras.tracing.config import TracingConfig
from extras.tracing.finished import FinishedRequests
from frontend.extras import FrontendContext, FrontendPart
from frontend.metrics.request_collector import LABEL
from frontend.service import Service
from messages.config.server import Config
from messages.errors import MissingExtraError

if TYPE_CHECKING:
    from extras.tracing.export import SpanExport

OUTCOMES = ("exported", "queue_full", "export_failed")


class TracingPart(FrontendPart):
    def __init__(self, service: Service, export: "SpanExport | None"):
        self._export = export
        self._finished = FinishedRequests(export.add) if export else None
        if self._finished is not None:
            service.on_response.append(self._finished.record_response)
            service.on_end.append(self._finished.record_end)
        num_spans = export.num_spans if export else Counter[str]()
        self.collectors = [SpanCollector(service.config.facts.served_names[0], num_spans)]

    def gauges(self) -> dict[str, float]:
        return {"unfinished_traces": len(self._finished) if self._finished is not None else 0}

    def close(self) -> None:
        if self._export is not None:
            self._export.close()


class SpanCollector(Collector):
    """Shows the spans by what became of them."""

    def __init__(self, model_name: str, num_spans: Mapping[str, int]):
        self._model_name = model_name
        self._num_spans = num_spans

    def collect(self) -> Iterator[Metric]:
        text = "Spans for --otlp-endpoint: sent, or lost and why."
        family = CounterMetricFamily("sluice_otlp_spans", text, labels=[LABEL, "outcome"])
        for outcome in OUTCOMES:
            family.add_metric([self._model_name, outcome], self._num_spans.get(outcome, 0))
        yield family


def make_part(context: FrontendContext) -> TracingPart:
    return TracingPart(context.service, open_span_export(context.link.config))


def open_span_export(config: Config) -> "SpanExport | None":
    """Returns the exporter of spans, `None` without `--otlp-endpoint`. Raises `BootError` if its library is missing."""
    endpoint = TracingConfig.of(config).otlp_endpoint
    if not endpoint:
        return None
    try:
        # Imported here and not above: the library is optional, and takes memory that a server without it saves.
        from extras.tracing.export import SpanExport
    except ImportError as error:
        raise MissingExtraError("--otlp-endpoint", "otlp", error) from None
    return SpanExport(endpoint, config.facts.served_names[0])
