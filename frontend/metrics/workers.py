"""Joins the metrics of several frontends, with a label for the frontend.

They are not summed: a sum would fall when one frontend is replaced, which Prometheus treats as a reset of all.
"""

from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from messages.ring.peers import MetricFamily, MetricSample, MetricsReport

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
