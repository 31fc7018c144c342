"""`GET /metrics` in Prometheus's text format. It waits only for other frontends, and only briefly."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from starlette.requests import Request

from frontend.http.responses import PlainReply
from frontend.links.peers import Peers
from messages.ring.peers import MetricFamily, MetricSample, MetricsReport, ReportMetrics


class MetricsApi:
    """`own` collectors count the work of this frontend; `shared` collectors have the same values in each frontend.

    With `peers`, a scrape includes the counts of every frontend, under its current name.
    """

    def __init__(
        self, own: Iterable[Collector], shared: Iterable[Collector], peers: Peers | None, own_name: Callable[[], str]
    ):
        self._own = tuple(own)
        self._shared = tuple(shared)
        self._peers = peers
        self._own_name = own_name
        if peers is not None:
            peers.register(ReportMetrics, self._report)

    async def metrics(self, request: Request) -> PlainReply:
        """Replies in OpenMetrics if the client accepts it, otherwise in the older text format."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        if content_type.startswith("application/openmetrics-text"):
            encode = _encode_open
        return PlainReply(encode(await self._collect()), headers={"content-type": content_type})

    def own_text(self) -> bytes:
        """Returns the metrics of this frontend, without asking the others."""
        registry = CollectorRegistry(auto_describe=False)
        for collector in (*self._own, *self._shared):
            registry.register(collector)
        return generate_latest(registry)

    async def _collect(self) -> CollectorRegistry:
        registry = CollectorRegistry(auto_describe=False)
        if self._peers is None:
            for collector in self._own:
                registry.register(collector)
        else:
            others = await self._peers.ask_all(ReportMetrics(), MetricsReport)
            reports = {self._own_name(): self._report(ReportMetrics()), **others.by_name}
            registry.register(_MetricList([*join_reports(reports), _missing(others.num_missing)]))
        for collector in self._shared:
            registry.register(collector)
        return registry

    def _report(self, question: ReportMetrics) -> MetricsReport:
        return make_report(self._own)


class _MetricList(Collector):
    def __init__(self, metrics: Iterable[Metric]):
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def _encode_open(registry: Collector) -> bytes:
    """Returns OpenMetrics text. Names are not escaped: the library would turn `vllm:` into `vllm_`."""
    return openmetrics.generate_latest(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        registry, escaping=openmetrics.ALLOWUTF8
    )


def _missing(num_missing: int) -> Metric:
    return GaugeMetricFamily(
        "sluice_frontends_missing",
        "Frontends that did not answer this scrape in time; their series are missing.",
        value=num_missing,
    )


WORKER_LABEL = "worker"


def make_report(collectors: Iterable[Collector]) -> MetricsReport:
    """Returns the metrics of `collectors` as a message to another frontend."""
    return MetricsReport(tuple(_pack(metric) for collector in collectors for metric in collector.collect()))


def join_reports(reports: Mapping[str, MetricsReport]) -> list[Metric]:
    """Returns the metrics of all `reports`, with each sample labelled by the name of its report."""
    joined: dict[str, Metric] = {}
    for worker, report in reports.items():
        for family in report.families:
            metric = joined.setdefault(family.name, Metric(family.name, family.text, family.kind))
            for sample in family.samples:
                metric.add_sample(sample.name, {**dict(sample.labels), WORKER_LABEL: worker}, sample.value)
    return list(joined.values())


def _pack(metric: Metric) -> MetricFamily:
    samples = tuple(MetricSample(sample.name, tuple(sample.labels.items()), sample.value) for sample in metric.samples)
    return MetricFamily(metric.name, metric.documentation, metric.type, samples)
