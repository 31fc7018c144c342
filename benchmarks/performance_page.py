"""Makes docs/PERFORMANCE.md and docs/performance/parts.md from the result files, so that every number names its run.

python -m benchmarks.performance_page
"""

from pathlib import Path

from benchmarks.page.cpu_engine import cpu_parts, one_stream_parts, step_kernels_parts
from benchmarks.page.gpu import make_gpu_part
from benchmarks.page.serving import (
    engine_death_text,
    footprint_text,
    load_table,
    mixed_table,
    recovery_table,
    ring_cost_table,
    schedule_table,
    wire_table,
)
from benchmarks.result_file import name_source, read_result, read_runs

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"


def main() -> int:
    for name, text in make_pages(RESULTS).items():
        (DOCS / name).write_text(text, encoding="utf-8")
    return 0


def make_pages(results: Path) -> dict[str, str]:
    """Returns the pages made from a directory of result files, by path below `docs/`."""
    return {"PERFORMANCE.md": _make_summary(results), "performance/parts.md": _make_parts(results)}


def _make_summary(results: Path) -> str:
    """Returns the page about what users notice."""
    loads = read_runs(results, "server")
    footprint, recovery = read_result(results, "footprint"), read_result(results, "recovery#processes")
    parts = [
        "# Performance\n\n`python -m benchmarks.performance_page` makes this page from the files in "
        "`benchmarks/results/`, which `make bench` writes. Unless a section says otherwise, the model is the bundled "
        "one and each number is from one run. All sections but the last ran on a CPU, with the C kernels and torch. "
        "Throughput of equal runs differed by up to half.\n\n"
        "`performance/parts.md` shows the parts that make up these numbers; `performance/choices.md` has the "
        "measurements that decided kernels and defaults.\n",
        "## A running server under load\n\n" + load_table(loads) + name_source(loads[0], len(loads)),
        *cpu_parts(results),
        "## Start, memory and idle\n\n" + footprint_text(footprint) + name_source(footprint),
        "## When a process is killed\n\n" + recovery_table(recovery) + name_source(recovery),
        make_gpu_part(results),
    ]
    return "\n".join(parts)


def _make_parts(results: Path) -> str:
    mixed, ring_cost, wire, schedule, death = (
        read_result(results, name) for name in ("mixed_steps", "ring_cost", "wire", "schedule", "recovery#engines")
    )
    parts = [
        "# Performance of the parts\n\nMade from result files, like `../PERFORMANCE.md`.\n",
        *one_stream_parts(results),
        *step_kernels_parts(results),
        "## Running streams while long prompts arrive\n\n" + mixed_table(mixed) + name_source(mixed),
        "## The ring's cost to clients\n\n" + ring_cost_table(ring_cost) + name_source(ring_cost),
        "## A step's cost outside of the model\n\n" + wire_table(wire) + name_source(wire),
        "## The scheduler's decisions\n\n" + schedule_table(schedule) + name_source(schedule),
        "## The death of one of several engines\n\n" + engine_death_text(death) + name_source(death),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    raise SystemExit(main())
