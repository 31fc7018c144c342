"""HTTP requests by what they asked for and how they were answered, as prometheus-fastapi-instrumentator counts them."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

UNKNOWN_HANDLER = "none"
"""In place of the path where it is no endpoint's: clients may not make series."""

OTHER_METHOD = "other"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpRequests(Collector):
    """Counts since the process started; whoever answers a request notes it when its response has ended."""

    def __init__(self) -> None:
        self._num_answered: Counter[tuple[str, str, str]] = Counter()
        """By handler, method and class of status."""

    def note(self, handler: str | None, method: str, status: int) -> None:
        """Counts a response. `handler` is the template of the endpoint's path, `None` for a path that is unknown."""
        known_method = method if method in METHODS else OTHER_METHOD
        self._num_answered[handler or UNKNOWN_HANDLER, known_method, f"{status // 100}xx"] += 1

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "http_requests",
            "Total number of requests by method, status and handler.",
            labels=["handler", "method", "status"],
        )
        for labels, count in self._num_answered.items():
            family.add_metric(labels, count)
        yield family
