"""The request metrics under their public names: vLLM's if the meaning is the same, so that its dashboards work."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from frontend.metrics.distribution import make_metric
from frontend.metrics.request_metrics import RequestMetrics
from frontend.requests.admission import Admission
from messages.ring.replies import FinishReason

LABEL = "model_name"


@dataclass(eq=False)
class RequestCollector(Collector):
    """Shows `metrics` and refusals under `model_name`; `gauges` returns the current gauges of the process."""

    _model_name: str
    _metrics: RequestMetrics
    _admission: Admission
    _gauges: Callable[[], dict[str, float]]
    _num_continued: Callable[[], int]

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield from self._distributions()
        yield self._stages()
        gauges = self._gauges()
        for name, text, key in (
            ("sluice_requests_open", "Requests between their arrival and their end.", "requests"),
            ("sluice_requests_on_hold", "New requests that wait for a process to be replaced.", "requests_on_hold"),
            ("sluice_streams", "Responses that are being streamed.", "streams"),
            ("sluice_connections", "Open connections of clients.", "connections"),
        ):
            yield make_metric(GaugeMetricFamily, name, text, [LABEL], {(self._model_name,): gauges[key]})

    def _counters(self) -> Iterator[Metric]:
        metrics = self._metrics
        prompt_tokens = metrics.prompt_tokens.total
        yield self._counter("vllm:prompt_tokens", "Prompt tokens of requests that have ended.", prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Generated tokens, as they arrive.", metrics.num_output_tokens)
        yield self._counter(
            "sluice_cached_prompt_tokens",
            "Prompt tokens of ended requests that were found in the prefix cache.",
            metrics.num_cached_tokens,
        )
        text = "Requests that have ended; refusals after admission count as errors."
        yield self._by("vllm:request_success", text, "finished_reason", get_args(FinishReason), metrics.num_ended)
        text = "Requests refused with 503, at admission or after a hold."
        codes = ("queue_full", "not_ready", "draining")
        yield self._by("sluice_requests_refused", text, "code", codes, self._admission.num_refused)
        yield self._counter("sluice_clients_gone", "Requests whose client left early.", metrics.num_clients_gone)
        yield self._counter(
            "sluice_continuations",
            "Attempts begun because a process died or frames were lost.",
            self._num_continued(),
        )

    def _distributions(self) -> Iterator[Metric]:
        metrics = self._metrics
        computed = "Prompt tokens of a request that were not in the prefix cache."
        for name, text, values in (
            ("time_to_first_token_seconds", "From the arrival of a request to its first token.", metrics.first_token_s),
            ("inter_token_latency_seconds", "Between tokens of a request, as they arrive.", metrics.token_gaps_s),
            ("request_time_per_output_token_seconds", "Mean time of a request's later tokens.", metrics.per_token_s),
            ("e2e_request_latency_seconds", "From arrival to end.", metrics.total_s),
            ("request_queue_time_seconds", "From the scheduler's queue to the first step.", metrics.queue_s),
            ("request_prefill_time_seconds", "From the first step to the first token.", metrics.prefill_s),
            ("request_decode_time_seconds", "From the first token to the last.", metrics.decode_s),
            ("request_inference_time_seconds", "From the first step to the last token.", metrics.inference_s),
            ("request_prompt_tokens", "Prompt tokens of a request.", metrics.prompt_tokens),
            ("request_generation_tokens", "Tokens generated for a request.", metrics.output_tokens),
            ("request_params_max_tokens", "max_tokens of a request.", metrics.max_tokens),
            ("request_prefill_kv_computed_tokens", computed, metrics.computed_tokens),
        ):
            family = HistogramMetricFamily(f"vllm:{name}", text, labels=[LABEL])
            family.add_metric([self._model_name], values.buckets(), values.total)
            yield family

    def _stages(self) -> Metric:
        family = HistogramMetricFamily(
            "sluice_request_stage_seconds",
            "Time of a request in each of its stages, as in /requests.",
            labels=[LABEL, "stage"],
        )
        for stage, spans in self._metrics.stage_s.items():
            family.add_metric([self._model_name, stage], spans.buckets(), spans.total)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        return make_metric(CounterMetricFamily, name, text, [LABEL], {(self._model_name,): value})

    def _by(self, name: str, text: str, label: str, values: Iterable[str], counts: Mapping[str, int]) -> Metric:
        """Returns a counter with a sample for each value of `label`."""
        samples = {(self._model_name, value): counts.get(value, 0) for value in values}
        return make_metric(CounterMetricFamily, name, text, [LABEL, label], samples)
