"""Metrics of LoRA adapters: those of the schedulers, and which of them this frontend's requests use."""

import time
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from frontend.links.processes import ProcessView
from frontend.requests.registry import Registry
from messages.config.server import Config
from runtime.adapter_table import read_table

GAUGES = (
    ("sluice_lora_adapters_in_memory", "LoRA adapters in the host's memory.", "adapters"),
    ("sluice_lora_slots", "LoRA adapters that rows may use at once.", "adapter_slots_all"),
    ("sluice_lora_slots_in_use", "LoRA adapters that rows use.", "adapter_slots_in_use"),
)


class AdapterCollector(Collector):
    def __init__(self, config: Config, processes: ProcessView, registry: Registry):
        self._table_file = config.facts.adapter_table
        self._num_slots = config.model.num_lora_slots
        self._processes = processes
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        table = read_table(self._table_file)
        yield GaugeMetricFamily("sluice_lora_adapters", "LoRA adapters that have a name.", value=len(table))
        engines = self._processes.engine_gauges()
        for name, text, key in GAUGES:
            family = GaugeMetricFamily(name, text, labels=["engine"])
            for engine, gauges in engines.items():
                family.add_metric([str(engine)], gauges.get(key, 0.0))
            yield family
        yield self._requests()

    def _requests(self) -> Metric:
        """vLLM's metric: its value is the time, its labels name the adapters of requests."""
        running, waiting = set[str](), set[str]()
        for generation in self._registry.all_open():
            adapter = generation.message.sampling_params.adapter
            if adapter is not None:
                (running if generation.first_token_ns else waiting).add(adapter.name)
        names = ["max_lora", "waiting_lora_adapters", "running_lora_adapters"]
        family = GaugeMetricFamily("vllm:lora_requests_info", "The LoRA adapters of open requests.", labels=names)
        if self._num_slots:
            family.add_metric([str(self._num_slots), ",".join(sorted(waiting)), ",".join(sorted(running))], time.time())
        return family
