"""The metrics that each of several frontends counts itself, brought together under a label that says whose they are.

They are not summed: a sum falls when one of them is replaced, which Prometheus would take for the end of all.
"""

from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from messages.ring.peers import MetricFamily, MetricSample, MetricsReport

WORKER_LABEL = "worker"


def make_report(collectors: Iterable[Collector]) -> MetricsReport:
    """Returns what `collectors` show, as it crosses to another frontend."""
    return MetricsReport(tuple(_pack(metric) for collector in collectors for metric in collector.collect()))


def join_reports(reports: Mapping[str, MetricsReport]) -> list[Metric]:
    """Returns the metrics of all `reports`, each sample with the name under which its report is given."""
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
