"""Makes docs/PERFORMANCE.md and the pages below it of the result files, so that every number has its run.

python -m benchmarks.performance_page
"""

from pathlib import Path

from benchmarks.page.cpu_engine import (
    cpu_parts,
    kv_cache_parts,
    one_stream_parts,
    quantization_parts,
    step_kernels_parts,
)
from benchmarks.page.engines import engine_death_text, remote_cost_table, router_table
from benchmarks.page.gpu import make_gpu_part
from benchmarks.page.serving import footprint_text, load_table, mixed_table, recovery_table, ring_cost_table
from benchmarks.page.step_costs import schedule_table, speculation_table, wire_table
from benchmarks.page.text import name_source, read_result

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
LOADS = ("server_1_stream", "server_16_streams", "server_64_streams", "server_shared_prefix")


def main() -> int:
    for name, text in make_pages(RESULTS).items():
        (DOCS / name).write_text(text, encoding="utf-8")
    return 0


def make_pages(results: Path) -> dict[str, str]:
    """Returns the pages for the result files in a directory, by their path in `docs/`."""
    return {"PERFORMANCE.md": _make_summary(results), "performance/parts.md": _make_parts(results)}


def _make_summary(results: Path) -> str:
    """What a user feels."""
    footprint, recovery = read_result(results, "footprint"), read_result(results, "recovery")
    loads = [read_result(results, name) for name in LOADS]
    parts = [
        "# Performance\n\nMade by `python -m benchmarks.performance_page` of the files in `benchmarks/results/`; "
        "`make bench` writes them anew. Where nothing else is said, the model is the bundled one and each figure is of "
        "one run. Everything but the last section ran on a CPU, on the C kernels and torch. Between equal runs, "
        "throughput was seen to differ by up to half.\n\n"
        "`performance/parts.md` has the parts that make up these figures; `performance/choices.md` the measurements "
        "by which kernels and defaults were chosen.\n",
        "## A running server under load\n\n" + load_table(loads) + name_source(loads[0], len(loads)),
        *cpu_parts(results),
        "## Start, memory and idle\n\n" + footprint_text(footprint) + name_source(footprint),
        "## When a process is killed\n\n" + recovery_table(recovery) + name_source(recovery),
        make_gpu_part(results),
    ]
    return "\n".join(parts)


def _make_parts(results: Path) -> str:
    mixed, ring_cost, wire, schedule, router, death, remote = (
        read_result(results, name)
        for name in ("mixed_steps", "ring_cost", "wire", "schedule", "router", "engine_death", "remote_cost")
    )
    speculation = read_result(results, "speculative_float32")
    parts = [
        "# Performance of the parts\n\nMade of result files, as `../PERFORMANCE.md` is.\n",
        *one_stream_parts(results),
        *step_kernels_parts(results),
        *quantization_parts(results),
        *kv_cache_parts(results),
        "## What running streams feel when long prompts arrive\n\n" + mixed_table(mixed) + name_source(mixed),
        "## What clients feel of the ring\n\n" + ring_cost_table(ring_cost) + name_source(ring_cost),
        "## What a step costs outside of the model\n\n" + wire_table(wire) + name_source(wire),
        "## What deciding costs\n\n" + schedule_table(schedule) + name_source(schedule),
        "## What speculation gains\n\n" + speculation_table(speculation) + name_source(speculation),
        "## When one of several engines dies\n\n" + engine_death_text(death) + name_source(death),
        "## How requests are spread over engines\n\n" + router_table(router) + name_source(router),
        "## What an engine on another machine costs\n\n" + remote_cost_table(remote) + name_source(remote),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    raise SystemExit(main())
