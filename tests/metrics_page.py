"""docs/METRICS.md, written from what a server shows at /metrics: `python -m tests.metrics_page`."""

import os
from pathlib import Path

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from messages.config.server import RunConfig
from messages.control.processes import ProcessTable
from tests.frontend.frontend_run import FrontendRun, make_config, table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "METRICS.md"

HEAD = """# Metrics

`GET /metrics` has these; `python -m tests.metrics_page` writes this page. Those that begin with `vllm:` mean what they
mean in vLLM. Where there are several frontends, their series have the label `worker` too (`docs/OPERATION.md`).

"""


def scrape() -> str:
    """Returns the metrics of one of several frontends after it has served a request."""
    with FrontendRun(make_config(run=RunConfig(frontend_workers=2))) as run:
        alive = [msgspec.structs.replace(status, pid=os.getpid()) for status in table().processes]
        run.show(ProcessTable(tuple(alive)))
        run.round_trip()
        run.client.get("/metrics")  # HTTP requests are counted after their response
        return run.client.get("/metrics").text


def families(text: str) -> list[Metric]:
    return sorted(text_string_to_metric_families(text), key=lambda family: family.name)


def labels_of(family: Metric) -> list[str]:
    """Returns the names of its labels, without those of frontends and buckets."""
    return sorted({label for sample in family.samples for label in sample.labels} - {"worker", "le"})


def make_page(text: str) -> str:
    """Returns the page for a scrape."""
    lines = ["| name | type | labels | meaning |", "|---|---|---|---|"]
    histograms: dict[str, list[str]] = {}
    for family in families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in labels_of(family))
        lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
        bounds = list(dict.fromkeys(sample.labels["le"] for sample in family.samples if "le" in sample.labels))
        if bounds:
            histograms.setdefault(" ".join(bound.removesuffix(".0") for bound in bounds), []).append(name)
    lines += ["", "Values of labels:", ""]
    for label in ("code", "finished_reason", "outcome", "stage", "state"):
        values = {
            sample.labels[label]: None
            for family in families(text)
            for sample in family.samples
            if label in sample.labels
        }
        lines.append(f"- `{label}`: {', '.join(values)}")
    lines += [
        "",
        "Buckets of the histograms, in seconds, tokens or rows (those of tokens end at the model's context):",
        "",
    ]
    lines += [f"- {', '.join(f'`{name}`' for name in names)}: {bounds}" for bounds, names in histograms.items()]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(make_page(scrape()), encoding="utf-8")
