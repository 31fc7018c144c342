"""A collector of spans over OTLP (http/protobuf), as far as a test needs one."""

import http.server
import threading
from types import TracebackType
from typing import Any, Self

import pytest

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="needs the extra otlp"
)


class Collector:
    """Answers `status` and keeps the spans of each body that it could read; `address` is for `--otlp-endpoint`."""

    def __init__(self, status: int = 200):
        self.spans: list[Any] = []
        self.resource: dict[str, Any] = {}
        self._is_free = threading.Event()
        self._is_free.set()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector._is_free.wait(60)
                collector.take(self.path, self.headers["Content-Type"], body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_free.set()
        self._server.shutdown()
        self._server.server_close()

    def hold(self) -> None:
        """Keeps each sender waiting until `release`."""
        self._is_free.clear()

    def release(self) -> None:
        self._is_free.set()

    def take(self, path: str, content_type: str, body: bytes) -> None:
        assert (path, content_type) == ("/v1/traces", "application/x-protobuf")
        request = trace_service.ExportTraceServiceRequest.FromString(body)
        for of_resource in request.resource_spans:
            self.resource = values(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                self.spans += of_scope.spans

    def roots(self) -> list[Any]:
        """Returns the spans of whole requests."""
        return [span for span in self.spans if "http.request.method" in values(span.attributes)]

    def below(self, parent: Any) -> list[Any]:
        """Returns the spans whose parent is `parent`, in order of time."""
        found = [span for span in self.spans if span.parent_span_id == parent.span_id]
        assert all(span.trace_id == parent.trace_id for span in found)
        return sorted(found, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano))


def values(attributes: Any) -> dict[str, Any]:
    """Returns attributes by name as Python's values."""
    return {entry.key: _value(entry.value) for entry in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(part) for part in value.array_value.values] if kind == "array_value" else getattr(value, kind)
