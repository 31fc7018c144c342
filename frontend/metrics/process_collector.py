"""Metrics of the processes: the schedulers' counts from their beats, and the resource usage of each process."""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, get_args

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from frontend.links.processes import ProcessView, kv_cache_usage
from frontend.metrics.distribution import Family, make_buckets, make_metric
from messages import VERSION
from messages.config.server import Config
from messages.control.admin import ScalingCause
from messages.control.histograms import BOUNDS, KV_TIERS, CounterTotals
from messages.control.processes import ENCODER, ProcessState, ProcessStatus, StallKind
from runtime.histograms import Histogram

MODEL_LABEL, PROCESS_LABEL = "model_name", "process"

ENGINE_LABEL = "engine"
"""The number of a scheduler; only if there are several."""

Metrics = tuple[tuple[str, str, str], ...]
"""Names, descriptions, and keys of gauges or counters."""

KV_CACHE_USAGE = "kv_cache_usage"
GAUGES = (
    ("vllm:num_requests_running", "Requests that have a row.", "running"),
    ("vllm:num_requests_waiting", "Requests that wait for a row, or on hold for a process.", "waiting"),
    ("vllm:kv_cache_usage_perc", "Fraction of the pages that requests use, 0 to 1.", KV_CACHE_USAGE),
    ("sluice_weights_bytes", "Bytes of the model's weights.", "weights_bytes"),
    ("sluice_kv_cache_bytes", "Bytes that the KV cache may take.", "kv_cache_bytes"),
    ("sluice_kv_cache_resident_bytes", "Bytes of the KV cache that are in memory.", "kv_cache_resident_bytes"),
    ("sluice_pages", "Pages of the KV cache.", "pages_all"),
    ("sluice_pages_cached", "Pages kept for future prompts.", "pages_cached"),
    ("sluice_window_pages", "Pages of layers with a window.", "window_pages_all"),
    ("sluice_window_pages_in_use", "Pages of layers with a window that requests use.", "window_pages_in_use"),
    ("sluice_state_slots", "Slots for recurrent states.", "state_slots_all"),
    ("sluice_state_slots_in_use", "Slots for recurrent states that requests use.", "state_slots_in_use"),
    ("sluice_state_checkpoints", "Recurrent states cached with pages.", "state_checkpoints"),
    ("sluice_lora_adapters", "LoRA adapters in the host's memory.", "adapters"),
    ("sluice_lora_slots", "LoRA adapters that rows may use at once.", "adapter_slots_all"),
    ("sluice_lora_slots_in_use", "LoRA adapters that rows use.", "adapter_slots_in_use"),
    ("sluice_requests_prefilling", "Requests whose prompt is being computed.", "prefilling"),
    ("sluice_requests_decoding", "Requests that are generating tokens.", "decoding"),
    ("sluice_requests_compiling", "Requests that wait for their grammar.", "compiling"),
    ("sluice_requests_encoding", "Requests that wait for the encodings of their images.", "images_waiting"),
    ("sluice_image_encodings", "Encodings of images in memory.", "images_cached"),
    ("sluice_image_encoding_bytes", "Bytes of the encodings of images in memory.", "encoding_bytes"),
)
COUNTERS = (
    ("vllm:prefix_cache_queries", "Prompt tokens looked for in the prefix cache.", "prompt_tokens"),
    ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hit_tokens"),
    ("vllm:num_preemptions", "Rows that were preempted because pages ran out.", "preemptions"),
    ("vllm:spec_decode_num_drafts", "Rows in steps that had draft tokens.", "drafts"),
    ("vllm:spec_decode_num_draft_tokens", "Draft tokens that were verified.", "draft_tokens"),
    ("vllm:spec_decode_num_accepted_tokens", "Draft tokens that were accepted.", "accepted_tokens"),
    ("sluice_images_encoded", "Images that were encoded.", "images_encoded"),
    ("sluice_image_cache_hits", "Images of requests whose encodings were in memory.", "image_hits"),
    ("sluice_image_cache_misses", "Images of requests whose encodings were not in memory.", "image_misses"),
    ("sluice_image_encodings_evicted", "Encodings of images that made room for others.", "images_evicted"),
    ("sluice_pages_evicted", "Cached pages that were evicted.", "pages_evicted"),
    ("sluice_window_pages_evicted", "Cached pages of layers with a window that were evicted.", "window_pages_evicted"),
    (
        "sluice_state_checkpoints_evicted",
        "Recurrent states cached with pages that were evicted.",
        "state_checkpoints_evicted",
    ),
    ("sluice_pages_recovered", "Pages that a scheduler took over from its predecessor.", "pages_recovered"),
    ("sluice_pages_dropped", "Full pages that could not be taken over or trusted.", "pages_dropped"),
    ("sluice_resumed_tokens", "Tokens of requests that continued after a replacement or a loss.", "resumed_tokens"),
    ("sluice_recomputed_tokens", "Resumed tokens that were computed again.", "recomputed_tokens"),
    ("sluice_kv_tier_skipped_pages", "Evicted pages not kept: too few are reused.", "tier_skipped_pages"),
    ("sluice_kv_tier_dropped_pages", "Evicted pages for which no tier had bandwidth or space.", "tier_dropped_pages"),
    ("sluice_kv_tier_dropped_states", "Likewise, recurrent states.", "tier_dropped_states"),
    ("sluice_steps", "Forward passes.", "steps"),
)
TIER_GAUGES = (
    ("sluice_kv_tier_pages", "Pages in a tier below the KV cache.", "pages"),
    ("sluice_kv_tier_states", "Recurrent states in a tier below the KV cache.", "states"),
    ("sluice_kv_tier_bytes", "Bytes of the pages and states in a tier below the KV cache.", "bytes"),
    ("sluice_kv_tier_read_bytes_per_second", "Recent read bandwidth of a tier.", "read_bytes_per_s"),
)
TIER_COUNTERS = (
    ("sluice_kv_tier_hit_pages", "Pages that requests loaded from a tier.", "hit_pages"),
    ("sluice_kv_tier_hit_states", "Recurrent states that requests loaded from a tier.", "hit_states"),
    ("sluice_kv_tier_read_bytes", "Bytes read from a tier.", "read_bytes"),
    ("sluice_kv_tier_written_bytes", "Bytes of evicted pages and states written to a tier.", "written_bytes"),
    ("sluice_kv_tier_errors", "Pages and states of a tier that could not be written or used.", "errors"),
)

HISTOGRAMS = {
    "step_seconds": ("sluice_step_seconds", "Duration of a step, from its plan to its result."),
    "step_rows": ("sluice_step_rows", "Rows of a step."),
    "step_tokens": ("vllm:iteration_tokens_total", "Tokens of a step, prefill and decode together."),
    "grammar_seconds": (
        "sluice_grammar_compile_seconds",
        "Time that a request waited for the compilation of a new grammar.",
    ),
}
ENCODER_HISTOGRAMS = {"image_seconds": ("sluice_image_encode_seconds", "Time to encode an image, by all encoders.")}


_gauge = partial(GaugeMetricFamily, labels=[PROCESS_LABEL])
_counter = partial(CounterMetricFamily, labels=[PROCESS_LABEL])


class ProcessCollector(Collector):
    """Shows the launcher's latest table (at most about 1 s old), which all frontends receive at the same time."""

    def __init__(self, config: Config, processes: ProcessView):
        self._config = config
        self._model = [config.facts.served_names[0]]
        self._processes = processes

    def collect(self) -> Iterator[Metric]:
        yield self._info()
        engines = self._processes.engine_gauges() or {1: {}}
        counted = self._processes.counted() or {1: CounterTotals()}
        counters = {engine: each.counters for engine, each in counted.items()}
        yield from self._of_engines(GaugeMetricFamily, GAUGES, self._gauges(engines))
        yield from self._of_engines(CounterMetricFamily, COUNTERS, counters)
        yield from self._of_engines(GaugeMetricFamily, TIER_GAUGES, engines, KV_TIERS)
        yield from self._of_engines(CounterMetricFamily, TIER_COUNTERS, counters, KV_TIERS)
        yield from self._histograms(counted, HISTOGRAMS)
        encoded = CounterTotals()
        for each in self._processes.counted(ENCODER).values():
            encoded = encoded.plus({}, each.histograms)
        yield from self._histograms({0: encoded}, ENCODER_HISTOGRAMS)
        statuses = self._processes.statuses()
        yield from self._states(statuses)
        yield self._stalls()
        yield from self._engines()
        yield from self._costs(statuses)
        yield from self._stages(statuses)

    def _info(self) -> Metric:
        config = self._config
        labels = {
            MODEL_LABEL: self._model[0],
            "version": VERSION,
            "device": config.model.device,
            "dtype": config.model.dtype,
            "kv_cache_dtype": config.cache.kv_cache_dtype,
            "quantization": config.model.quantization,
            "max_model_len": str(config.facts.max_model_len),
            "block_size": str(config.cache.block_size),
            "max_num_seqs": str(config.scheduling.max_num_seqs),
            "speculative": config.scheduling.speculative,
        }
        placements = list(self._processes.placements().values())
        labels |= placements[0] if placements else {}
        text = "Always 1; the labels are the flags of this server, with auto resolved."
        return make_metric(GaugeMetricFamily, "sluice_info", text, list(labels), {tuple(labels.values()): 1})

    def _of_engines(
        self, make: Family, table: Metrics, values: Mapping[int, Mapping[str, float]], tiers: Sequence[str] = ()
    ) -> Iterator[Metric]:
        """Yields the metrics in `table` with a sample for each engine or, with `tiers`, for each of its tiers."""
        for name, text, key in table:
            samples: dict[tuple[str, ...], float] = {}
            for engine, of_engine in values.items():
                for tier in tiers:
                    samples[*self._values(engine), tier] = of_engine.get(f"{tier}_{key}", 0.0)
                if not tiers and (engine or key in of_engine):
                    samples[tuple(self._values(engine))] = of_engine.get(key, 0.0)
            yield make_metric(make, name, text, [*self._labels, *["tier"] * bool(tiers)], samples)

    def _gauges(self, engines: Mapping[int, Mapping[str, float]]) -> dict[int, dict[str, float]]:
        """Returns the gauges of each engine. Requests on hold wait at the only engine, or at none: 0."""
        gauges = {engine: {**each, KV_CACHE_USAGE: kv_cache_usage(each)} for engine, each in engines.items()}
        held = gauges.setdefault(0, {}) if self._has_engines else next(iter(gauges.values()))
        held["waiting"] = held.get("waiting", 0.0) + self._processes.num_on_hold
        return gauges

    @property
    def _has_engines(self) -> bool:
        """True if the schedulers' metrics have a label for the engine."""
        return len(self._processes.engine_gauges()) > 1

    @property
    def _labels(self) -> list[str]:
        return [MODEL_LABEL, *[ENGINE_LABEL] * self._has_engines]

    def _values(self, engine: int) -> list[str]:
        return [*self._model, *[str(engine or "")] * self._has_engines]

    def _engines(self) -> Iterator[Metric]:
        """Yields the target number of engines, and how often it was adjusted automatically (`--max-engines`)."""
        processes = self._processes
        num = processes.num_engines if processes.scaling is None else processes.scaling.target
        yield GaugeMetricFamily("sluice_engines_target", "Target number of engines.", value=num)
        decisions = {} if processes.scaling is None else processes.scaling.num_decisions
        text = "Automatic changes of the number of engines (--max-engines), by cause."
        counts = {(cause,): decisions.get(cause, 0) for cause in get_args(ScalingCause)}
        yield make_metric(CounterMetricFamily, "sluice_engine_scalings", text, ["cause"], counts)

    def _histograms(
        self, counted: Mapping[int, CounterTotals], table: Mapping[str, tuple[str, str]]
    ) -> Iterator[Metric]:
        for key, (name, text) in table.items():
            family = HistogramMetricFamily(name, text, labels=self._labels)
            for engine, each in counted.items():
                histogram = each.histograms.get(key) or Histogram(key).counts()
                family.add_metric(self._values(engine), make_buckets(BOUNDS[key], histogram.counts), histogram.total)
            yield family

    def _states(self, statuses: list[ProcessStatus]) -> Iterator[Metric]:
        now_ns = time.monotonic_ns()
        state = GaugeMetricFamily(
            "sluice_process_state", "1 for the state that a process is in.", labels=[PROCESS_LABEL, "state"]
        )
        degraded = _gauge("sluice_process_degraded", "1 if a process serves in a degraded state; see /health.")
        age = _gauge("sluice_process_beat_age_seconds", "Time since the last heartbeat that the launcher received.")
        incarnation = _gauge("sluice_process_incarnation", "Number of starts of a process.")
        text = "How often a process was replaced after it died or hung, or by a command."
        restarts = _counter("sluice_process_restarts", text)
        for status in statuses:
            for name in get_args(ProcessState):
                state.add_metric([status.name, name], float(status.state == name))
            degraded.add_metric([status.name], float(bool(status.degraded)))
            if status.beat_ns:
                age.add_metric([status.name], max(0, now_ns - status.beat_ns) / 1e9)
            incarnation.add_metric([status.name], status.incarnation)
            restarts.add_metric([status.name], status.num_restarts)
        yield from (state, degraded, age, incarnation, restarts)

    def _stalls(self) -> Metric:
        counts = {(kind,): self._processes.num_stalls.get(kind, 0) for kind in get_args(StallKind)}
        text = "Stalls that the launcher has reported."
        return make_metric(CounterMetricFamily, "sluice_stalls", text, ["kind"], counts)

    def _costs(self, statuses: list[ProcessStatus]) -> Iterator[Metric]:
        """Yields the costs of the process that has each place now; there is no sample if none is running."""
        families = (
            _counter("sluice_process_cpu_seconds", "CPU time of a process, user and system."),
            _gauge("sluice_process_resident_bytes", "Resident memory of a process."),
            _gauge("sluice_process_threads", "Threads of a process."),
            _gauge("sluice_process_open_fds", "Open file descriptors of a process."),
            _gauge("sluice_process_start_time_seconds", "When the process was started, in seconds since 1970."),
        )
        for status in statuses:
            cost = find_cost(status.pid)
            if cost is not None:
                for family, value in zip(families, cost, strict=True):
                    family.add_metric([status.name], value)
        yield from families

    def _stages(self, statuses: list[ProcessStatus]) -> Iterator[Metric]:
        """Yields what stages have done, by process (`--pipeline-parallel`)."""
        for key, name, text in (
            ("computing_s", "sluice_stage_computing_seconds", "Time that a stage has computed."),
            ("waiting_s", "sluice_stage_waiting_seconds", "Time that a stage has waited for the one before it."),
        ):
            family = _counter(name, text)
            for status in statuses:
                if key in status.gauges:
                    family.add_metric([status.name], status.gauges[key])
            yield family


class ProcessCost(NamedTuple):
    cpu_s: float
    resident_bytes: int
    num_threads: int
    num_open_files: int
    started_s: float


def find_cost(pid: int) -> ProcessCost | None:
    """Returns the resource usage of process `pid`, `None` if it is not accessible."""
    if not pid:
        return None
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_info()
            cpu_s = times.user + times.system
            return ProcessCost(cpu_s, memory.rss, process.num_threads(), process.num_fds(), process.create_time())
    except psutil.Error:
        return None
