"""HTTP requests by endpoint and status, counted in the same way as prometheus-fastapi-instrumentator does."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from frontend.metrics.distribution import Distribution, make_metric
from frontend.metrics.request_metrics import SPAN_BOUNDS_S

UNKNOWN_HANDLER = "none"
"""Replaces paths that belong to no endpoint, so that clients cannot create series."""

OTHER_METHOD = "other"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpRequests(Collector):
    """Counts since the process started; the application calls `note` when a response has ended."""

    def __init__(self) -> None:
        self._num_answered: Counter[tuple[str, str, str]] = Counter()
        """By handler, method and class of status."""
        self._seconds: dict[tuple[str, str], Distribution] = {}
        """By handler and method."""

    def record(self, handler: str | None, method: str, status: int, seconds: float) -> None:
        """Counts a response. `handler` is the path template of the endpoint, `None` for an unknown path."""
        key = handler or UNKNOWN_HANDLER, method if method in METHODS else OTHER_METHOD
        self._num_answered[*key, f"{status // 100}xx"] += 1
        if key not in self._seconds:
            self._seconds[key] = Distribution(SPAN_BOUNDS_S)
        self._seconds[key].add(seconds)

    def collect(self) -> Iterator[Metric]:
        text = (
            "Responses. `handler` is the path with {id} for the variable part, `none` for an unknown path; `status` is "
            "2xx, 4xx (also for a client that left before its response) or 5xx."
        )
        labels = ["handler", "method", "status"]
        yield make_metric(CounterMetricFamily, "http_requests", text, labels, self._num_answered)
        durations = HistogramMetricFamily(
            "http_request_duration_seconds",
            "From the head of a request to the end of its response, including streams.",
            labels=["handler", "method"],
        )
        for key, seconds in self._seconds.items():
            durations.add_metric(key, seconds.buckets(), seconds.total)
        yield durations
