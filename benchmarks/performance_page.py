"""Makes docs/PERFORMANCE.md of the result files, so that every number in it can be traced to its run.

python -m benchmarks.performance_page
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "PERFORMANCE.md"
LOADS = ("server_1_stream", "server_16_streams", "server_64_streams", "server_shared_prefix")

Result = dict[str, Any]


def main() -> int:
    PAGE.write_text(make_page(RESULTS), encoding="utf-8")
    return 0


def make_page(results: Path) -> str:
    """Returns the page for the result files in a directory."""
    footprint, mixed, schedule, wire = (
        _read(results, name) for name in ("footprint", "mixed_steps", "schedule", "wire")
    )
    loads = [_read(results, name) for name in LOADS]
    parts = [
        "# Performance\n\nMade by `python -m benchmarks.performance_page` of the files in `benchmarks/results/`; "
        "`make bench` writes them anew. The model is the bundled one, in plain torch on a CPU; nothing has been run "
        "on a GPU. Each figure is of one run; between equal runs, throughput was seen to differ by up to half.\n",
        "## A running server under load\n\n" + _load_table(loads) + _source(loads[0], len(loads)),
        "## What running streams feel when long prompts arrive\n\n" + _mixed_table(mixed) + _source(mixed),
        "## Start, memory and idle\n\n" + _footprint_text(footprint) + _source(footprint),
        "## What a step costs outside of the model\n\n" + _wire_table(wire) + _source(wire),
        "## What deciding costs\n\n" + _schedule_table(schedule) + _source(schedule),
    ]
    return "\n".join(parts)


def _load_table(loads: Iterable[Result]) -> str:
    rows: list[Sequence[object]] = []
    for load in loads:
        settings, report = load["results"]["settings"], load["results"]["report"]
        latencies = report["latencies"]
        first, between = latencies["time to first token"], latencies["inter-token"]
        shared = f", {settings['shared_prefix']} of the prompt shared" if settings["shared_prefix"] else ""
        num_ok = report["outcomes"]["ok"]
        rows.append(
            (
                f"{settings['concurrency']} at a time{shared}",
                f"{report['prompt_tokens'] // num_ok} + {report['output_tokens'] // num_ok}",
                f"{report['output_tokens_per_s']:,.0f}",
                f"{first['p50_ms']:.0f} / {first['p99_ms']:.0f}",
                f"{between['p50_ms']:.1f} / {between['p99_ms']:.1f}",
            )
        )
    heads = ("load", "tokens in + out", "output tok/s", "first token ms, p50 / p99", "between tokens ms, p50 / p99")
    return _table(heads, rows)


def _mixed_table(mixed: Result) -> str:
    plan = mixed["results"]["plan"]
    rows: list[Sequence[object]] = []
    for server in mixed["results"]["servers"]:
        latencies = server["latencies"]
        quiet, busy = latencies["inter-token, quiet"], latencies["inter-token, prompts arriving"]
        first = latencies["time to first token of the prompts"]
        rows.append(
            (
                f"`{server['server']}`",
                f"{quiet['p50_ms']:.0f} / {quiet['p99_ms']:.0f}",
                f"{busy['p50_ms']:.0f} / {busy['p99_ms']:.0f} / {busy['max_ms']:.0f}",
                f"{first['p50_ms']:.0f}",
            )
        )
    tokens = mixed["results"]["servers"][0]["long_prompt_tokens"]
    intro = (
        f"{plan['num_streams']} streams run; meanwhile bursts of {plan['burst']} prompts of {tokens:,} tokens arrive. "
        "The default on a CPU is 512 tokens a step; with 8192 all prompts of a burst fit into one step.\n\n"
    )
    heads = (
        "",
        "between tokens ms, quiet, p50 / p99",
        "prompts arriving, p50 / p99 / max",
        "the prompts' first token, p50",
    )
    return intro + _table(heads, rows)


def _footprint_text(footprint: Result) -> str:
    found = footprint["results"]["footprint"]
    rows: list[Sequence[object]] = []
    for before, after in zip(found["memory_before"], found["memory_after"], strict=True):
        cpu = found["idle_after"]["percent_by_process"][before["command"]]
        rows.append((before["command"], f"{before['rss_mib']:.0f}", f"{after['rss_mib']:.0f}", f"{cpu:.1f}"))
    times = {text: seconds for seconds, text in found["log_until_ready"]}
    torch_s = times["scheduler    reading the model's configuration"] - times["scheduler    importing torch"]
    intro = (
        f"Ready {found['seconds_to_ready']:.1f} s after the command, of which importing torch takes {torch_s:.1f} s. "
        f"Idle, all processes together: {found['idle_before']['percent_of_a_core']:.1f} % of a core after the start, "
        f"{found['idle_after']['percent_of_a_core']:.1f} % after a load of 64 streams. Stopped by SIGTERM in "
        f"{found['seconds_to_stop']:.1f} s, exit code {found['exit_code']}, "
        f"{found['num_left_behind']} processes left.\n\n"
    )
    return intro + _table(("process", "RSS MiB, fresh", "RSS MiB, after 64 streams", "idle CPU %"), rows)


def _wire_table(wire: Result) -> str:
    rows: list[Sequence[object]] = []
    for step in wire["results"]["steps"]:
        of_process = {"scheduler": 0.0, "detokenizer": 0.0, "frontend": 0.0}
        for stage, times in step["stages"].items():
            process = stage.partition(":")[0]
            if process in of_process:
                of_process[process] += times["median_us"]
        stops = f", {step['num_stop_strings']} stop strings each" if step["num_stop_strings"] else ""
        rows.append((f"{step['num_rows']} rows{stops}", *(f"{micros / 1000:.2f}" for micros in of_process.values())))
    return _table(("step of", "scheduler ms", "detokenizer ms", "frontend ms, up to the frames"), rows)


def _schedule_table(schedule: Result) -> str:
    rows = [(line["what"].strip(), f"{line['median_us']:.1f}", f"{line['p99_us']:.1f}") for line in schedule["results"]]
    return _table(("", "median µs", "p99 µs"), rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _source(result: Result, num_files: int = 1) -> str:
    machine = result["machine"]
    more = f" and {num_files - 1} more like it" if num_files > 1 else ""
    return (
        f"\n`{result['command']}`{more}: {machine['cores']} cores of {machine['cpu']}, Python {machine['python']}, "
        f"commit {result['commit']}.\n"
    )


def _read(results: Path, name: str) -> Result:
    return json.loads((results / f"{name}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    raise SystemExit(main())
