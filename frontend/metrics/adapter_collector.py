"""The metric that names the LoRA adapters of this frontend's requests, as vLLM has it."""

import time
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from frontend.metrics.distribution import make_metric
from frontend.requests.registry import Registry


class AdapterCollector(Collector):
    """Without slots, that is if LoRA is off, there is no sample."""

    def __init__(self, num_slots: int, registry: Registry):
        self._num_slots = num_slots
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        running, waiting = set[str](), set[str]()
        for generation in self._registry.all_open():
            adapter = generation.message.sampling_params.adapter
            if adapter is not None:
                (running if generation.first_token_ns else waiting).add(adapter.name)
        labels = {"max_lora": str(self._num_slots)}
        labels["running_lora_adapters"] = ",".join(sorted(running))
        labels["waiting_lora_adapters"] = ",".join(sorted(waiting))
        text = "The LoRA adapters of open requests, as labels; the value is the time."
        values = {tuple(labels.values()): time.time()} if self._num_slots else {}
        yield make_metric(GaugeMetricFamily, "vllm:lora_requests_info", text, list(labels), values)
