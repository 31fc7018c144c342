from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from frontend.api.operate.metrics import join_reports, make_report


class Counts(Collector):
    def __init__(self, value: float):
        self._value = value

    def collect(self):
        family = CounterMetricFamily("tokens", "Tokens.", labels=["model_name"])
        family.add_metric(["m"], self._value)
        yield family
        yield HistogramMetricFamily("seconds", "Time.", buckets=[("1.0", self._value), ("+Inf", 9.0)], sum_value=2.5)


def test_the_samples_of_each_worker_stand_next_to_each_other_in_one_family():
    reports = {name: make_report([Counts(value)]) for name, value in (("frontend", 3.0), ("frontend-2", 4.0))}
    registry = CollectorRegistry(auto_describe=False)

    class Joined(Collector):
        def collect(self):
            return join_reports(reports)

    registry.register(Joined())
    text = generate_latest(registry).decode()
    assert text.count("# TYPE tokens_total counter") == text.count("# TYPE seconds histogram") == 1
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    tokens = {sample.labels["worker"]: sample.value for sample in samples if sample.name == "tokens_total"}
    assert tokens == {"frontend": 3.0, "frontend-2": 4.0}
    assert all(sample.labels["model_name"] == "m" for sample in samples if sample.name == "tokens_total")
    buckets = {(each.labels["worker"], each.labels["le"]): each.value for each in samples if "le" in each.labels}
    assert buckets == {
        ("frontend", "1.0"): 3.0,
        ("frontend", "+Inf"): 9.0,
        ("frontend-2", "1.0"): 4.0,
        ("frontend-2", "+Inf"): 9.0,
    }
