"""Sections about a whole server: load, long prompts, start, the ring, killed processes, and costs outside the model."""

import statistics
from collections.abc import Iterable, Sequence

from benchmarks.result_file import Result, make_table


def load_table(loads: Iterable[Result]) -> str:
    """Returns a table with a row for each load."""
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
    return make_table(heads, rows)


def mixed_table(mixed: Result) -> str:
    """Returns a table with a row for each token budget."""
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
        "The default on a CPU is 512 tokens per step; at 8192, all prompts of a burst fit into one step.\n\n"
    )
    heads = (
        "",
        "between tokens ms, quiet, p50 / p99",
        "prompts arriving, p50 / p99 / max",
        "the prompts' first token, p50",
    )
    return intro + make_table(heads, rows)


def footprint_text(footprint: Result) -> str:
    """Returns the times of start and stop, and a table with a row for each process."""
    found = footprint["results"]["footprint"]
    rows: list[Sequence[object]] = []
    for before, after in zip(found["memory_before"], found["memory_after"], strict=True):
        cpu = found["idle_after"]["percent_by_process"][before["command"]]
        rows.append((before["command"], f"{before['rss_mib']:.0f}", f"{after['rss_mib']:.0f}", f"{cpu:.1f}"))
    times = {text: seconds for seconds, text in found["log_until_ready"]}
    torch_s = times["scheduler    reading the model's configuration"] - times["scheduler    importing torch"]
    intro = (
        f"Ready {found['seconds_to_ready']:.1f} s after launch, of which importing torch takes {torch_s:.1f} s. "
        f"Idle, all processes together: {found['idle_before']['percent_of_a_core']:.1f} % of a core after the start, "
        f"{found['idle_after']['percent_of_a_core']:.1f} % after a load of 64 streams. Stopped by SIGTERM in "
        f"{found['seconds_to_stop']:.1f} s, exit code {found['exit_code']}, "
        f"{found['num_left_behind']} processes left.\n\n"
    )
    return intro + make_table(("process", "RSS MiB, fresh", "RSS MiB, after 64 streams", "idle CPU %"), rows)


def ring_cost_table(ring_cost: Result) -> str:
    """Returns a table with a row for each number of streams."""
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
        f"The scheduler's steps only wait, {ring_cost['results'][0]['step_ms']:g} ms each; everything else is real. "
        "The first token's time excludes the scheduler and includes the load generator's own work.\n\n"
    )
    heads = (
        "streams",
        "tokens/s",
        "first token: HTTP, tokenizer and back, ms, p50 / p99",
        "step in the scheduler ms",
        "between tokens at the client ms, p50 / p99",
        "frontend CPU, µs per token",
        "tokens/s per frontend core",
    )
    return intro + make_table(heads, rows)


def recovery_table(recovery: Result) -> str:
    """Returns a table with a row for each killed process."""
    rows: list[Sequence[object]] = []
    kills = recovery["results"]["kills"]
    for process in dict.fromkeys(kill["process"] for kill in kills):
        of_process = [kill for kill in kills if kill["process"] == process]
        medians = [_median(of_process, field) for field in ("ready_s", "streams_s", "new_request_s")]
        rows.append((process, len(of_process), *medians))
    intro = f"Seconds from `kill -9` under {recovery['results']['streams']} streams, medians.\n\n"
    heads = ("process", "kills", "serving again", "pause of running streams", "first token of a request sent at once")
    pauses = [
        f"{one['process']} {one['streams_s']:.2f} s" + (f" ({one['num_failed']} failed)" if one["num_failed"] else "")
        for one in recovery["results"].get("replacements", ())
    ]
    rolling = f"\nLongest pause of a stream when each process is replaced by a command: {', '.join(pauses)}.\n"
    return intro + make_table(heads, rows) + (rolling if pauses else "")


def _median(kills: Iterable[Result], field: str) -> str:
    values = [kill[field] for kill in kills if kill[field] is not None]
    return f"{statistics.median(values):.2f}" if values else "they end"


def wire_table(wire: Result) -> str:
    """Returns a table with a row for each size of a step: the time that each process spends on it."""
    rows: list[Sequence[object]] = []
    for step in wire["results"]["steps"]:
        of_process = {"scheduler": 0.0, "detokenizer": 0.0, "frontend": 0.0}
        for stage, times in step["stages"].items():
            process = stage.partition(":")[0]
            if process in of_process:
                of_process[process] += times["median_us"]
        stops = f", {step['num_stop_strings']} stop strings each" if step["num_stop_strings"] else ""
        rows.append((f"{step['num_rows']} rows{stops}", *(f"{micros / 1000:.2f}" for micros in of_process.values())))
    return make_table(("step of", "scheduler ms", "detokenizer ms", "frontend ms, up to the frames"), rows)


def schedule_table(schedule: Result) -> str:
    """Returns a table with a row for each kind of decision."""
    rows = [(line["what"].strip(), f"{line['median_us']:.1f}", f"{line['p99_us']:.1f}") for line in schedule["results"]]
    return make_table(("", "median µs", "p99 µs"), rows)


def engine_death_text(recovery: Result) -> str:
    """Returns a paragraph about the longest pauses of single streams."""
    kills = recovery["results"]["kills"]
    pauses_s = sorted(one["stream_pause_s"] for one in kills)
    back_s = sorted(one["ready_s"] for one in kills)
    ordered = [one["stream_pause_s"] for one in recovery["results"]["replacements"]]
    return (
        f"Two engines on the cores of this CPU, {recovery['results']['streams']} streams, {len(kills)} times `kill -9` "
        f"of one engine. The longest pause of any stream was {pauses_s[0]:.2f} to {pauses_s[-1]:.2f} s (median "
        f"{statistics.median(pauses_s):.2f}), and the engine served again after {back_s[0]:.1f} to {back_s[-1]:.1f} s. "
        f"When a command replaced an engine, the pause was at most {max(ordered):.2f} s. Other programs used the "
        f"cores too (load {recovery['machine']['load_1min']:.1f}).\n\n"
    )
