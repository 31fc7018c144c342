"""Makes docs/PERFORMANCE.md of the result files, so that every number in it can be traced to its run.

python -m benchmarks.performance_page
"""

from pathlib import Path

from benchmarks.page.cpu_engine import cpu_parts, quantization_parts, step_kernels_parts
from benchmarks.page.gpu import make_gpu_part
from benchmarks.page.serving import footprint_text, load_table, mixed_table, recovery_table, ring_cost_table
from benchmarks.page.step_costs import schedule_table, wire_table
from benchmarks.page.text import name_source, read_result

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "PERFORMANCE.md"
LOADS = ("server_1_stream", "server_16_streams", "server_64_streams", "server_shared_prefix")


def main() -> int:
    PAGE.write_text(make_page(RESULTS), encoding="utf-8")
    return 0


def make_page(results: Path) -> str:
    """Returns the page for the result files in a directory."""
    footprint, mixed, schedule, wire = (
        read_result(results, name) for name in ("footprint", "mixed_steps", "schedule", "wire")
    )
    ring_cost, recovery = read_result(results, "ring_cost"), read_result(results, "recovery")
    loads = [read_result(results, name) for name in LOADS]
    parts = [
        "# Performance\n\nMade by `python -m benchmarks.performance_page` of the files in `benchmarks/results/`; "
        "`make bench` writes them anew. Where nothing else is said, the model is the bundled one and each figure is of "
        "one run. Everything but the last section ran on a CPU, on the C kernels and torch. Between equal runs, "
        "throughput was seen to differ by up to half.\n",
        "## A running server under load\n\n" + load_table(loads) + name_source(loads[0], len(loads)),
        *cpu_parts(results),
        *step_kernels_parts(results),
        *quantization_parts(results),
        "## What running streams feel when long prompts arrive\n\n" + mixed_table(mixed) + name_source(mixed),
        "## Start, memory and idle\n\n" + footprint_text(footprint) + name_source(footprint),
        "## What clients feel of the ring\n\n" + ring_cost_table(ring_cost) + name_source(ring_cost),
        "## When a process is killed\n\n" + recovery_table(recovery) + name_source(recovery),
        "## What a step costs outside of the model\n\n" + wire_table(wire) + name_source(wire),
        "## What deciding costs\n\n" + schedule_table(schedule) + name_source(schedule),
        make_gpu_part(results),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    raise SystemExit(main())
