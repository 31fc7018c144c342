"""Sends spans to a collector over OTLP (http/protobuf) in a thread of its own, and counts those that are lost.

The loop only puts ended requests into a bounded queue; a thread makes spans of them, once a second, and waits for the
collector. The environment variables of OpenTelemetry's SDK hold (OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER,
OTEL_EXPORTER_OTLP_HEADERS, …).
"""

import logging
import os
import sys
import threading
from collections import Counter, deque

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from extras.tracing.finished import FinishedRequest
from extras.tracing.spans import make_spans
from messages import VERSION

MAX_QUEUED = 2048
"""Requests."""

MAX_BATCH = 256
"""Requests whose spans leave together."""

INTERVAL_S = 1.0
TIMEOUT_S = 10.0
"""For one batch, retries included."""

FLUSH_TIMEOUT_S = 1.5
"""Part of the time that a frontend has to stop."""

SWITCH_INTERVAL_S = 0.0005
"""The switch interval of Python's threads: how long the event loop may wait for the one that makes spans."""

TRACES_PATH = "/v1/traces"

log = logging.getLogger("sluice.tracing")


class _EndedSpans(SpanProcessor):
    """Keeps the spans that have ended and are sampled."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self.spans.append(span)


class SpanExport:
    """Its thread starts with it. `num_spans` counts them by what became of them."""

    def __init__(self, endpoint: str, model: str):
        self.num_spans: Counter[str] = Counter()
        """`exported`, `queue_full` or `export_failed`."""
        self._model = model
        self._queue: deque[FinishedRequest] = deque()
        self._news = threading.Event()
        self._closing = threading.Event()
        self._is_failing = False
        self._collected = _EndedSpans()
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(self._collected)
        self._tracer = self._provider.get_tracer("sluice", VERSION)
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it would log each batch
        self._endpoint = traces_url(endpoint)
        self._exporter = OTLPSpanExporter(self._endpoint, timeout=TIMEOUT_S)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def add(self, request: FinishedRequest) -> None:
        """Queues the spans of `request`; never waits."""
        if len(self._queue) >= MAX_QUEUED:
            self.num_spans["queue_full"] += request.num_spans
            return
        self._queue.append(request)
        self._news.set()

    def close(self) -> None:
        """Sends what is left, within a limit."""
        self._closing.set()
        self._news.set()
        self._thread.join(FLUSH_TIMEOUT_S)
        if self._thread.is_alive():
            log.warning("spans are lost: %s does not take them", self._endpoint)
        self._exporter.shutdown()

    def _run(self) -> None:
        is_open = True
        while is_open:
            self._news.wait()
            self._news.clear()
            is_open = not self._closing.wait(INTERVAL_S)
            while self._queue:
                self._send([self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))])

    def _send(self, requests: list[FinishedRequest]) -> None:
        for request in requests:
            try:
                make_spans(self._tracer, request, self._model)
            except Exception:
                log.exception("no spans of request %s", request.request_id)
        spans, self._collected.spans = self._collected.spans, []
        if not spans:
            return
        is_sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
        self.num_spans["exported" if is_sent else "export_failed"] += len(spans)
        if self._is_failing == is_sent:
            self._is_failing = not is_sent
            if is_sent:
                log.info("%s takes spans again", self._endpoint)
            else:
                log.warning("%s does not take spans: they are dropped until it does", self._endpoint)


def traces_url(endpoint: str) -> str:
    """Returns where spans go: the path `/v1/traces` of a collector, unless the URL has it already."""
    return endpoint if endpoint.endswith(TRACES_PATH) else endpoint.rstrip("/") + TRACES_PATH


def _resource() -> Resource:
    """Returns what all spans have; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES go before ours."""
    own = {"service.name": "sluice", "service.version": VERSION, "process.pid": os.getpid()}
    return Resource.create().merge(Resource(own)).merge(OTELResourceDetector().detect())
