"""The sections about the CPU engine: compared with other servers, kernel by kernel, and with quantized weights."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.page.text import Result, make_table, name_source, read_result


def cpu_parts(results: Path) -> list[str]:
    """Returns the section of the CPU engine, empty if it has not been measured."""
    found = [read_result(results, file.stem) for file in sorted(results.glob("cpu*.json"))]
    if not found:
        return []
    return [
        "## The CPU engine compared with other servers\n",
        *(_cpu_text(cpu["results"]) + name_source(cpu) for cpu in found),
    ]


def _cpu_text(found: Result) -> str:
    names = list(found["workloads"][0]["median"])
    limits, starts = found["limits"], found["start_to_first_token_s"]
    (dtype,) = (name.split("_")[0] for name in limits if name.endswith("_product_gflop_per_s"))
    isa = f", {found['isa']}" if "isa" in found else ""
    num_rounds = len(found["workloads"][0]["rounds"]["sluice"])
    rounds = f"medians of {num_rounds} rounds in which the servers take turns" if num_rounds > 1 else "one round"
    at_best = f", at best in {limits['rounds']} rounds," if "rounds" in limits else ""
    intro = (
        f"{found['shape']} with random weights, {dtype}{isa}, over HTTP, {rounds}. From the command to "
        f"the first token: {', '.join(f'{name} {seconds:.1f} s' for name, seconds in starts.items())}. Measured in the "
        f"same run: {limits['threads']} threads{at_best} read {limits['read_gb_per_s']:.0f} GB/s and multiply "
        f"{limits[f'{dtype}_product_gflop_per_s']:,.0f} GFLOP/s; one stream whose every token reads all weights once "
        f"at that rate would get {limits['one_stream_tok_per_s_at_read_limit']:.0f} tok/s."
    )
    remark = f" {found['remark']}" if "remark" in found else ""
    heads = ("workload", "tokens in + out", "unit", *names, "times the best peer", "goal")
    return f"{intro}{remark}\n\n" + make_table(heads, [_cpu_row(line, found["peers"]) for line in found["workloads"]])


def _cpu_row(line: Result, peers: Sequence[str]) -> Sequence[object]:
    median = line["median"]
    own, others = median["sluice"], [median[name] for name in peers]
    is_time = line["unit"] == "s"
    gain = f"{min(others) / own if is_time else own / max(others):.2f}" if others else ""
    cells = [f"{value:,.{1 if value < 100 else 0}f}" for value in median.values()]
    return (f"{line['name']} {line['about']}", line["tokens"], line["unit"], *cells, gain, line["goal"])


def one_stream_parts(results: Path) -> list[str]:
    """Returns the section that compares one stream with the memory's speed; empty if it has not been measured."""
    found = [read_result(results, file.stem) for file in sorted(results.glob("one_stream*.json"))]
    if not found:
        return []
    tables = "\n".join(_one_stream_text(one["results"]) + name_source(one) for one in found)
    return ["## One stream compared with the memory's speed\n\n" + tables]


def _one_stream_text(found: Result) -> str:
    rows = [
        (
            name,
            f"{line['tok_per_s']:.1f}",
            *(f"{line[key]:.1f}" for key in ("gb_per_s", "read_gb_per_s")),
            *(f"{line[key]:.0%}" for key in ("share", "goal")),
        )
        for name, line in found["formats"].items()
    ]
    isa = f"{found['isa']}, " if "isa" in found else ""
    intro = (
        f"{found['shape']} with random weights, {isa}over HTTP, {found['threads']} threads, medians. A token reads all "
        "weights, K and V once. The memory's speed is that of probes between the answers. A share can exceed 100%: "
        "what the last-level cache keeps from one token to the next is not read from memory.\n\n"
    )
    return intro + make_table(("format", "tok/s", "GB/s", "memory, GB/s", "share", "goal"), rows)


def step_kernels_parts(results: Path) -> list[str]:
    """Returns the section of what a step's C kernels take, empty if it has not been measured."""
    found = [read_result(results, file.stem) for file in sorted(results.glob("step_kernels*.json"))]
    if not found:
        return []
    tables = "\n".join(_step_kernels_text(one["results"]) + name_source(one) for one in found)
    return ["## Where a step's time goes on a CPU\n\n" + tables]


def _step_kernels_text(found: Result) -> str:
    steps, limits = found["steps"], found["limits"]
    names = sorted({name for step in steps for name in step["kernels_ms"]}, key=lambda name: _total(steps, name))[::-1]
    rows: list[Sequence[object]] = []
    for step in steps:
        times = (f"{step['kernels_ms'][name]:.2f}" if name in step["kernels_ms"] else "" for name in names)
        rows.append((step["about"], f"{step['ms']:.1f}", f"{step['least_ms']:.1f}", *times))
    of_products = ""
    if found["format"] == "bfloat16":
        of_products = f", or the products at {limits['product GFLOP/s']:,.0f} GFLOP/s"
    intro = (
        f"{found['shape']}, {found['format']}, in one process, medians in ms. The least is what reading weights, K and "
        f"V once takes at {limits['read GB/s']:.0f} GB/s{of_products}, measured before.\n\n"
    )
    return intro + make_table(("step", "all", "at least", *names), rows)


def _total(steps: Sequence[Result], name: str) -> float:
    return sum(step["kernels_ms"].get(name, 0.0) for step in steps)


def quantization_parts(results: Path) -> list[str]:
    """Returns the section of quantized weights, empty if they have not been measured."""
    if not (results / "quantization.json").exists():
        return []
    found = read_result(results, "quantization")
    intro = "Perplexity of the end of tiny Shakespeare, asked of a server; int8 and int4 compute in bfloat16.\n\n"
    perplexity = intro + _perplexity_table(found["results"]["perplexity"])
    tables = perplexity, _quantized_speed_table(found["results"]["speed"])
    return ["## int8 and int4 weights on a CPU\n\n" + "\n".join(tables) + name_source(found)]


def kv_cache_parts(results: Path) -> list[str]:
    """Returns the section of an int8 KV cache, empty if it has not been measured."""
    names = ("kv_cache", "kv_cache_1_thread")
    if not all((results / f"{name}.json").exists() for name in names):
        return []
    quality, speed = (read_result(results, name) for name in names)
    intro = "Perplexity of the end of tiny Shakespeare, asked of a server whose cache is in the format.\n\n"
    table = intro + _perplexity_table(quality["results"]["perplexity"])
    steps = _cached_step_table(speed["results"])
    return ["## An int8 KV cache on a CPU\n\n" + table + name_source(quality) + "\n" + steps + name_source(speed)]


def _cached_step_table(found: Result) -> str:
    speed, dtype = found["speed"], found["dtype"]
    formats = list(speed["cache_mib"])
    rows: list[Sequence[object]] = []
    for step in speed["steps"]:
        figures = (f"{step['median'][name][key]:,.0f}" for key in ("cpu_ms", "attention_ms") for name in formats)
        rows.append((step["rows"], step["context"], *figures))
    caches = ", ".join(f"{size:,.0f} MiB in {name}" for name, size in speed["cache_mib"].items())
    intro = (
        f"Decode steps of {speed['layers']} layers of {speed['shape']} that compute in {dtype} with {speed['threads']} "
        f"thread: the CPU time of a step, and how long its attention took while other programs ran. The cache: "
        f"{caches}.\n\n"
    )
    header = "rows", "context", *(f"{what}, {name}, ms" for what in ("step's CPU", "attention") for name in formats)
    return intro + make_table(header, rows)


def _perplexity_table(lines: Iterable[Result]) -> str:
    rows: list[Sequence[object]] = []
    exact: dict[str, float] = {}
    for line in lines:
        exact.setdefault(line["model"], line["perplexity"])
        more = 100 * (line["perplexity"] / exact[line["model"]] - 1)
        cells = f"{line['num_tokens']:,}", line["format"], f"{line['perplexity']:.4f}", f"{more:+.3f} %"
        rows.append((line["model"], *cells))
    return make_table(("model", "tokens", "format", "perplexity", "change from float32"), rows)


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
    return intro + make_table(("workload", "tokens in + out", "unit", *formats), rows)
