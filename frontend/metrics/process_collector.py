"""The metrics of the processes: the scheduler's counts from its beats, and what the system says of each process."""

import time
from collections.abc import Iterator, Mapping
from typing import get_args

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from frontend.links.processes import ProcessView
from frontend.metrics.distribution import make_buckets
from messages.control import ProcessState, ProcessStatus, StallKind
from messages.histograms import BOUNDS, HistogramCounts
from runtime.histograms import Histogram

MODEL_LABEL, PROCESS_LABEL = "model_name", "process"

HISTOGRAMS = {
    "step_seconds": ("sluice_step_seconds", "Time of a step."),
    "step_rows": ("sluice_step_rows", "Rows of a step."),
    "step_tokens": ("vllm:iteration_tokens_total", "Tokens of a step, prefill and decode together."),
}


class ProcessCollector(Collector):
    """Shows the launcher's latest table (at most about a second old), which all frontends get at the same time."""

    def __init__(self, model_name: str, processes: ProcessView):
        self._model = [model_name]
        self._processes = processes

    def collect(self) -> Iterator[Metric]:
        yield from self._scheduler_gauges()
        counted = self._processes.counted("scheduler")
        yield from self._counters(counted.counters)
        yield from self._histograms(counted.histograms)
        statuses = self._processes.statuses()
        yield from self._states(statuses)
        yield self._stalls()
        yield from self._costs(statuses)

    def _scheduler_gauges(self) -> Iterator[Metric]:
        processes, gauges = self._processes, self._processes.gauges("scheduler")
        for name, text, value in (
            ("vllm:num_requests_running", "Requests that have a row.", gauges.get("running", 0.0)),
            ("vllm:num_requests_waiting", "Requests that wait for a row.", processes.num_waiting),
            (
                "vllm:kv_cache_usage_perc",
                "Part of the pages that requests hold, 0 to 1.",
                processes.kv_cache_usage,
            ),
            ("sluice_pages", "Pages of the KV cache.", gauges.get("pages_all", 0.0)),
            ("sluice_pages_cached", "Pages kept for prompts to come.", gauges.get("pages_cached", 0.0)),
        ):
            family = GaugeMetricFamily(name, text, labels=[MODEL_LABEL])
            family.add_metric(self._model, value)
            yield family

    def _counters(self, counters: Mapping[str, float]) -> Iterator[Metric]:
        for name, text, key in (
            ("vllm:prefix_cache_queries", "Prompt tokens looked for in the prefix cache.", "prompt_tokens"),
            ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hit_tokens"),
            ("vllm:num_preemptions", "Rows that gave way because pages were short.", "preemptions"),
            ("vllm:spec_decode_num_draft_tokens", "Draft tokens that were verified.", "draft_tokens"),
            ("vllm:spec_decode_num_accepted_tokens", "Draft tokens that were right.", "accepted_tokens"),
            ("sluice_steps", "Forward passes.", "steps"),
        ):
            family = CounterMetricFamily(name, text, labels=[MODEL_LABEL])
            family.add_metric(self._model, counters.get(key, 0.0))
            yield family

    def _histograms(self, histograms: Mapping[str, HistogramCounts]) -> Iterator[Metric]:
        for key, (name, text) in HISTOGRAMS.items():
            histogram = histograms.get(key) or Histogram(key).counts()
            family = HistogramMetricFamily(name, text, labels=[MODEL_LABEL])
            family.add_metric(self._model, make_buckets(BOUNDS[key], histogram.counts), histogram.total)
            yield family

    def _states(self, statuses: list[ProcessStatus]) -> Iterator[Metric]:
        now_ns = time.monotonic_ns()
        state = GaugeMetricFamily(
            "sluice_process_state", "1 for the state that a process is in.", labels=[PROCESS_LABEL, "state"]
        )
        age = GaugeMetricFamily("sluice_process_beat_age_seconds", "Since the last beat.", labels=[PROCESS_LABEL])
        incarnation = GaugeMetricFamily("sluice_process_incarnation", "Starts of a process.", labels=[PROCESS_LABEL])
        restarts = CounterMetricFamily(
            "sluice_process_restarts",
            "How often a process was replaced.",
            labels=[PROCESS_LABEL],
        )
        for status in statuses:
            for name in get_args(ProcessState):
                state.add_metric([status.name, name], float(status.state == name))
            if status.beat_ns:
                age.add_metric([status.name], max(0, now_ns - status.beat_ns) / 1e9)
            incarnation.add_metric([status.name], status.incarnation)
            restarts.add_metric([status.name], status.num_restarts)
        yield from (state, age, incarnation, restarts)

    def _stalls(self) -> Metric:
        family = CounterMetricFamily("sluice_stalls", "Stalls that the launcher has told of.", labels=["kind"])
        for kind in get_args(StallKind):
            family.add_metric([kind], self._processes.num_stalls.get(kind, 0))
        return family

    def _costs(self, statuses: list[ProcessStatus]) -> Iterator[Metric]:
        """Both are of the process that has the place now, and missing where nothing runs."""
        cpu = CounterMetricFamily("sluice_process_cpu_seconds", "CPU time, user and system.", labels=[PROCESS_LABEL])
        memory = GaugeMetricFamily("sluice_process_resident_bytes", "Resident memory.", labels=[PROCESS_LABEL])
        for status in statuses:
            cost = _find_cost(status.pid)
            if cost is not None:
                cpu.add_metric([status.name], cost[0])
                memory.add_metric([status.name], cost[1])
        yield from (cpu, memory)


def _find_cost(pid: int) -> tuple[float, int] | None:
    """Returns CPU seconds and resident bytes of process `pid`; `None` where it cannot be looked at."""
    if not pid:
        return None
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss
    except psutil.Error:
        return None
