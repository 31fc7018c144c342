"""Metrics of the keys in the file, whose names are the values of the label `key`."""

import contextlib
import sqlite3
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from extras.keys.ledger import KeyUsage
from extras.keys.meter import Meter
from frontend.metrics.distribution import make_metric

TEXTS = {
    "requests": "Requests of a key that have ended.",
    "prompt_tokens": "Prompt tokens of a key's requests, cached ones included.",
    "cached_tokens": "Prompt tokens of a key's requests that the prefix cache had.",
    "output_tokens": "Output tokens of a key's requests.",
    "seconds": "Time from arrival to end, summed over a key's requests.",
    "limited": "Requests that a limit of the key has refused.",
}


class KeyCollector(Collector):
    """The counters continue after restarts. They are those of all frontends together."""

    def __init__(self, meter: Meter):
        self._meter = meter

    def collect(self) -> Iterator[Metric]:
        known: dict[str, tuple[KeyUsage, int]] = {}
        with contextlib.suppress(sqlite3.Error):  # it is logged when requests enter
            known = self._meter.ledger.read_all()
        shown = {name: known.get(name, (KeyUsage(), 0)) for name in self._meter.table.entries}
        for field, text in TEXTS.items():
            values = {(name,): getattr(used, field) for name, (used, _) in shown.items()}
            yield make_metric(CounterMetricFamily, f"sluice_key_{field}", text, ["key"], values)
        text, values = "Requests of a key that run or wait.", {(name,): running for name, (_, running) in shown.items()}
        yield make_metric(GaugeMetricFamily, "sluice_key_running_requests", text, ["key"], values)
