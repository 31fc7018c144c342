"""`/metrics` of the router: its own metrics, and those of each loaded model with a label `model`."""

import asyncio
import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request

from extras.models.loads import Loads
from extras.models.model_table import ModelTable
from extras.models.residency import Residency, StateOf, UnloadReason
from extras.models.upstream import UpstreamGoneError, Upstreams
from frontend.http.endpoint import Endpoint
from frontend.http.responses import PlainReply
from frontend.metrics.distribution import make_metric

MODEL_LABEL = "model"
SCRAPE_TIMEOUT_S = 3.0
KEY_HEADERS = ("authorization", "x-api-key")


class RouterMetrics(Collector):
    """As a collector: what the router knows of its models. `others`: further metrics of the router itself."""

    def __init__(
        self, table: ModelTable, loads: Loads, residency: Residency, upstreams: Upstreams, others: Iterable[Collector]
    ):
        self._table = table
        self._loads = loads
        self._residency = residency
        self._upstreams = upstreams
        self._num_missing = 0
        """Models that did not answer the latest scrape in time."""
        self._registry = CollectorRegistry(auto_describe=False)
        for collector in (self, *others):
            self._registry.register(collector)

    def collect(self) -> Iterator[Metric]:
        residency, table, names = self._residency, self._table, self._table.names
        text = "1 for the state that a model is in."
        states = {
            (name, state): float(table.state(name).value == state) for name in names for state in get_args(StateOf)
        }
        yield make_metric(GaugeMetricFamily, "sluice_model_state", text, [MODEL_LABEL, "state"], states)
        text, opened = "Requests at a model's server.", {(name,): residency.num_open(name) for name in names}
        yield make_metric(GaugeMetricFamily, "sluice_model_open_requests", text, [MODEL_LABEL], opened)
        text = "Bytes of a model's weights and KV cache, once it is loaded."
        sizes = {(name,): about.num_bytes for name in names if (about := table.reports[name].description)}
        yield make_metric(GaugeMetricFamily, "sluice_model_bytes", text, [MODEL_LABEL], sizes)
        seconds = residency.load_seconds
        text = "From the order to load a model until its server serves."
        buckets, total = seconds.buckets(), seconds.total
        yield HistogramMetricFamily("sluice_model_load_seconds", text, buckets=buckets, sum_value=total)
        text = "Models unloaded: for the memory of another one, at the end of their keep-alive, or by request."
        unloads = {(reason,): residency.unloads[reason] for reason in get_args(UnloadReason)}
        yield make_metric(CounterMetricFamily, "sluice_model_unloads", text, ["reason"], unloads)
        for name, text, value in (
            ("waiting_requests", "Requests that wait for the load of their model.", self._loads.num_waiting),
            ("memory_limit_bytes", "Memory for the loaded models (--models-memory-gb).", residency.limit_bytes),
            ("memory_bytes", "Memory that the loaded models take at most.", residency.used_bytes),
            ("missing", "Models that did not answer this scrape in time.", self._num_missing),
        ):
            yield GaugeMetricFamily(f"sluice_models_{name}", text, value=value)

    async def metrics(self, request: Request) -> PlainReply:
        """Replies in Prometheus's text format, without the models that do not answer in time."""
        headers = [(name.encode(), value.encode()) for name, value in request.headers.items() if name in KEY_HEADERS]
        names = self._table.loaded()
        texts = await asyncio.gather(*(self._scrape(self._table.url(name), headers) for name in names))
        scraped = {name: text for name, text in zip(names, texts, strict=True) if text}
        self._num_missing = len(names) - len(scraped)
        content = merge_metrics(generate_latest(self._registry).decode(), scraped)
        return PlainReply(content, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _scrape(self, url: str, headers: list[tuple[bytes, bytes]]) -> str:
        with contextlib.suppress(UpstreamGoneError, TimeoutError):
            async with asyncio.timeout(SCRAPE_TIMEOUT_S):
                status, body = await self._upstreams.fetch(url, "/metrics", headers)
                return body.decode() if status == 200 else ""
        return ""


def merge_metrics(own: str, scraped: Mapping[str, str]) -> str:
    """Returns one page of metrics in which the samples of the `scraped` pages have a label for the model.

    Prometheus's text format, 0.0.4: all lines of a family follow its HELP and TYPE, which are written once.
    """
    heads: dict[str, dict[str, None]] = {}
    samples: dict[str, list[str]] = {}
    for model, text in {None: own, **scraped}.items():
        family = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                heads.setdefault(family, {}).setdefault(line)
            elif line and not line.startswith("#"):
                samples.setdefault(family, []).append(line if model is None else _labelled(line, model))
    return "".join(f"{line}\n" for family, head in heads.items() for line in (*head, *samples.get(family, ())))


def _labelled(sample: str, model: str) -> str:
    label = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    name, separator, rest = re.split(r"([{ ])", sample, maxsplit=1)
    return f'{name}{{{MODEL_LABEL}="{label}"{"," if separator == "{" else "} "}{rest}'


def make_metrics(metrics: RouterMetrics) -> list[Endpoint]:
    text = "The router's metrics, and those of the loaded models with a label `model`"
    return [Endpoint("/metrics", metrics.metrics, text, access="overall", is_polled=True)]
