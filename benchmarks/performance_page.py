"""Makes docs/PERFORMANCE.md of the result files, so that every number in it can be traced to its run.

python -m benchmarks.performance_page
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_page import make_gpu_part

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
    ring_cost, recovery = _read(results, "ring_cost"), _read(results, "recovery")
    loads = [_read(results, name) for name in LOADS]
    parts = [
        "# Performance\n\nMade by `python -m benchmarks.performance_page` of the files in `benchmarks/results/`; "
        "`make bench` writes them anew. Where nothing else is said, the model is the bundled one and each figure is of "
        "one run. Everything but the last section ran on a CPU, on the C kernels and torch. Between equal runs, "
        "throughput was seen to differ by up to half.\n",
        "## A running server under load\n\n" + _load_table(loads) + _source(loads[0], len(loads)),
        *_cpu_parts(results),
        *_quantization_parts(results),
        "## What running streams feel when long prompts arrive\n\n" + _mixed_table(mixed) + _source(mixed),
        "## Start, memory and idle\n\n" + _footprint_text(footprint) + _source(footprint),
        "## What clients feel of the ring\n\n" + _ring_cost_table(ring_cost) + _source(ring_cost),
        "## When a process is killed\n\n" + _recovery_table(recovery) + _source(recovery),
        "## What a step costs outside of the model\n\n" + _wire_table(wire) + _source(wire),
        "## What deciding costs\n\n" + _schedule_table(schedule) + _source(schedule),
        make_gpu_part(results),
    ]
    return "\n".join(parts)


def _cpu_parts(results: Path) -> list[str]:
    """Returns the section of the CPU engine, or none where it has not been measured yet."""
    found = [_read(results, file.stem) for file in sorted(results.glob("cpu*.json"))]
    if not found:
        return []
    return ["## The CPU engine beside other servers\n", *(_cpu_text(cpu["results"]) + _source(cpu) for cpu in found)]


def _cpu_text(found: Result) -> str:
    names = list(found["workloads"][0]["median"])
    limits, starts = found["limits"], found["start_to_first_token_s"]
    intro = (
        f"{found['shape']} with random weights, {found['dtype']}, over HTTP, medians of "
        f"{len(found['workloads'][0]['rounds']['sluice'])} rounds in which the servers take turns. From the command to "
        f"the first token: {', '.join(f'{name} {seconds:.1f} s' for name, seconds in starts.items())}. Measured in the "
        f"same run: {limits['threads']} threads read {limits['read_gb_per_s']:.0f} GB/s and multiply "
        f"{limits['bfloat16_product_gflop_per_s']:,.0f} GFLOP/s; one stream whose every token reads all weights once "
        f"at that rate would be given {limits['one_stream_tok_per_s_at_read_limit']:.0f} tok/s.\n\n"
    )
    heads = ("workload", "tokens in + out", "unit", *names, "times the best peer", "goal")
    return intro + _table(heads, [_cpu_row(line, found["peers"]) for line in found["workloads"]])


def _cpu_row(line: Result, peers: Sequence[str]) -> Sequence[object]:
    median = line["median"]
    own, others = median["sluice"], [median[name] for name in peers]
    is_time = line["unit"] == "s"
    gain = f"{min(others) / own if is_time else own / max(others):.2f}" if others else ""
    cells = [f"{value:,.{1 if value < 100 else 0}f}" for value in median.values()]
    return (f"{line['name']} {line['about']}", line["tokens"], line["unit"], *cells, gain, line["goal"])


def _quantization_parts(results: Path) -> list[str]:
    """Returns the section of quantized weights, or none where they have not been measured yet."""
    if not (results / "quantization.json").exists():
        return []
    found = _read(results, "quantization")
    tables = _perplexity_table(found["results"]["perplexity"]), _quantized_speed_table(found["results"]["speed"])
    return ["## int8 and int4 weights on a CPU\n\n" + "\n".join(tables) + _source(found)]


def _perplexity_table(lines: Iterable[Result]) -> str:
    rows: list[Sequence[object]] = []
    exact: dict[str, float] = {}
    for line in lines:
        exact.setdefault(line["model"], line["perplexity"])
        more = 100 * (line["perplexity"] / exact[line["model"]] - 1)
        cells = f"{line['num_tokens']:,}", line["format"], f"{line['perplexity']:.4f}", f"{more:+.3f} %"
        rows.append((line["model"], *cells))
    intro = "Perplexity of the end of tiny Shakespeare, asked of a server; int8 and int4 compute in bfloat16.\n\n"
    return intro + _table(("model", "tokens", "format", "perplexity", "beside float32"), rows)


def _quantized_speed_table(speed: Result) -> str:
    formats = list(speed["scheduler_rss_mib"])
    rows: list[Sequence[object]] = []
    for line in speed["workloads"]:
        figures = (f"{line['median'][name]:,.0f}" for name in formats)
        rows.append((f"{line['name']} {line['about']}", line["tokens"], line["unit"], *figures))
    memory = (f"{speed['scheduler_rss_mib'][name]:,.0f}" for name in formats)
    rows.append(("memory of the scheduler's process after the start", "", "MiB", *memory))
    rounds = len(next(iter(speed["workloads"][0]["rounds"].values())))
    intro = f"{speed['shape']} with random weights, over HTTP, medians of {rounds} rounds; servers take turns.\n\n"
    return intro + _table(("workload", "tokens in + out", "unit", *formats), rows)


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


def _ring_cost_table(ring_cost: Result) -> str:
    rows: list[Sequence[object]] = []
    for cost in ring_cost["results"]:
        latencies = cost["latencies"]
        first, between = latencies["of it outside of the scheduler"], latencies["inter-token"]
        step = latencies["mean step of a stream, in the scheduler"]
        rows.append(
            (
                cost["num_streams"],
                f"{cost['output_tokens_per_s']:,.0f}",
                f"{first['p50_ms']:.1f} / {first['p99_ms']:.1f}",
                f"{step['p50_ms']:.1f}",
                f"{between['p50_ms']:.1f} / {between['p99_ms']:.1f}",
                f"{cost['cpu_us_per_token']['frontend']:.0f}",
                f"{cost['frontend_tokens_per_core_s']:,}",
            )
        )
    intro = (
        f"The scheduler's steps only wait, {ring_cost['results'][0]['step_ms']:g} ms each; the rest is real. The first "
        "token's column is what is left without the scheduler's part of it, the load generator's own work included.\n\n"
    )
    heads = (
        "streams",
        "tokens/s",
        "first token: HTTP, tokenizer and back, ms, p50 / p99",
        "step in the scheduler ms",
        "between tokens at the client ms, p50 / p99",
        "frontend's CPU µs a token",
        "tokens/s for one core of frontend",
    )
    return intro + _table(heads, rows)


def _recovery_table(recovery: Result) -> str:
    rows: list[Sequence[object]] = []
    kills = recovery["results"]["kills"]
    for process in dict.fromkeys(kill["process"] for kill in kills):
        of_process = [kill for kill in kills if kill["process"] == process]
        medians = [_median(of_process, field) for field in ("ready_s", "streams_s", "new_request_s")]
        rows.append((process, len(of_process), *medians))
    intro = f"Seconds from `kill -9` under {recovery['results']['streams']} streams, medians.\n\n"
    heads = ("process", "kills", "it serves again", "running streams pause", "first token of a request sent at once")
    pauses = [
        f"{one['process']} {one['streams_s']:.2f} s" + (f" ({one['num_failed']} failed)" if one["num_failed"] else "")
        for one in recovery["results"].get("replacements", ())
    ]
    rolling = f"\nReplaced by order, one after another, the longest pause of the streams: {', '.join(pauses)}.\n"
    return intro + _table(heads, rows) + (rolling if pauses else "")


def _median(kills: Iterable[Result], field: str) -> str:
    values = [kill[field] for kill in kills if kill[field] is not None]
    return f"{statistics.median(values):.2f}" if values else "they end"


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
