"""Sections about the CPU engine: compared with other servers, with the memory's speed, and kernel by kernel."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.result_file import Result, make_table, name_source, read_result, read_runs

README_RUNS = {
    "avx512_gpt2-124m": ("GPT-2 124M, bfloat16", "random"),
    "avx512_qwen3-0.6b": ("Qwen3 0.6B, bfloat16", "random"),
    "gguf_smollm2-q4_k_m": ("SmolLM2 135M Instruct, Q4_K_M", "trained"),
    "gguf_qwen2.5-0.5b-q4_k_m": ("Qwen2.5 0.5B, Q4_K_M", "random"),
    "gguf_qwen3-0.6b-q8_0": ("Qwen3 0.6B, Q8_0", "random"),
    "gguf_qwen3-a3b-q4_k_m": ("4 layers of Qwen3 30B A3B (experts), Q4_K_M", "random"),
    "gguf_qwen3.5-0.8b-q4_k_m": ("Qwen3.5 0.8B (recurrent layers), Q4_K_M", "random"),
}
"""Runs of `cpu.json` in the README's table: the model and its form, and what its weights are."""
README_WORKLOADS = ("W1", "W2", "W3")


def readme_table(results: Path) -> str:
    """Returns the README's table of speed, a row for each model, and a line with the machine, commit and day."""
    runs = {name: read_result(results, f"cpu#{name}") for name in README_RUNS}
    rows = [[*README_RUNS[name], *_readme_cells(run["results"])] for name, run in runs.items()]
    first = {line["name"]: line for line in next(iter(runs.values()))["results"]["workloads"]}
    about = [
        f"{first[name]['about']}, {first[name]['tokens']} tokens: {first[name]['unit']}" for name in README_WORKLOADS
    ]
    table = make_table(("model", "weights", "compared with", *about), rows)
    return f"{table}\n{' '.join(sorted({_machine_text(run) for run in runs.values()}))}\n"


VECTOR_PEERS = {
    "fastembed": "fastembed in float32",
    "openvino": "OpenVINO in float32",
    "openvino_bf16": "OpenVINO in bfloat16",
}


def vectors_text(experiments: Path) -> str:
    """Returns the sentence about vectors of texts, from the comparison of decision 0168."""
    run = read_result(experiments, "embeddings_0121/minilm#auto")
    one, many = ({name: median(row[load]) for name, row in run["results"].items()} for load in ("one", "many"))
    gains = [
        f"{one['sluice'] / one[name]:.2f} and {many['sluice'] / many[name]:.2f} × {about}"
        for name, about in VECTOR_PEERS.items()
    ]
    return (
        f"Vectors of all-MiniLM-L6-v2 (trained), 256 texts of 128 tokens in one request, and 32 clients: "
        f"{one['sluice']:.1f} and {many['sluice']:.1f} texts/s, {', '.join(gains)}. {_machine_text(run)}\n"
    )


def _machine_text(run: Result) -> str:
    machine = run["machine"]
    vectors = f" with {machine['vectors']}" if machine.get("vectors") else ""
    return (
        f"{machine['cores']} cores of {machine['cpu']}{vectors}, over HTTP, commit {run['commit']}, {run['when'][:10]}."
    )


def _readme_cells(found: Result) -> Sequence[object]:
    """Returns the names of the peers, and for each workload our rate, and how many times the best peer's it is."""
    peers, lines = found["peers"], {line["name"]: line for line in found["workloads"]}
    names = ", ".join(name.split(" ")[0] for name in peers)
    rates = [(lines[name]["median"]["sluice"], _gain(lines[name], peers)) for name in README_WORKLOADS]
    return [names, *(f"{_format(rate)} ({gain:.2f} ×)" for rate, gain in rates)]


def _gain(line: Result, peers: Sequence[str]) -> float:
    """Returns how many times as fast as the best peer our server is."""
    own, others = line["median"]["sluice"], [line["median"][name] for name in peers]
    return min(others) / own if line["unit"] == "s" else own / max(others)


def _format(value: float) -> str:
    return f"{value:,.{1 if value < 100 else 0}f}"


def cpu_parts(results: Path, name: str) -> list[str]:
    """Returns the section that compares the CPU engine with other servers, `[]` if there are no results."""
    found = read_runs(results, name)
    return ["## The CPU engine and other servers\n", *map(_cpu_part, found)] if found else []


def _cpu_part(run: Result) -> str:
    return _cpu_text(run["results"]) + name_source(run)


def _weights_text(found: Result) -> str:
    return f"as {found['gguf']}" if found.get("gguf") else "with random weights"


def _cpu_text(found: Result) -> str:
    names = list(found["workloads"][0]["median"])
    limits, starts = found["limits"], found["start_to_first_token_s"]
    (dtype,) = (name.split("_")[0] for name in limits if name.endswith("_product_gflop_per_s"))
    isa = f", {found['isa']}" if "isa" in found else ""
    num_rounds = len(found["workloads"][0]["rounds"]["sluice"])
    rounds = f"medians of {num_rounds} rounds in which the servers take turns" if num_rounds > 1 else "one round"
    at_best = f" (best of {limits['rounds']} rounds)" if "rounds" in limits else ""
    intro = (
        f"{found['shape']} {_weights_text(found)}, {dtype}{isa}, over HTTP, {rounds}. From launch to "
        f"the first token: {', '.join(f'{name} {seconds:.1f} s' for name, seconds in starts.items())}. Measured in the "
        f"same run: {limits['threads']} threads{at_best} read {limits['read_gb_per_s']:.0f} GB/s and multiply "
        f"{limits[f'{dtype}_product_gflop_per_s']:,.0f} GFLOP/s. At that rate of reads, one stream that reads all "
        f"weights once per token gets {limits['one_stream_tok_per_s_at_read_limit']:.0f} tok/s."
    )
    remark = f" {found['remark']}" if "remark" in found else ""
    heads = ("workload", "tokens in + out", "unit", *names, "times the best peer", "goal")
    return f"{intro}{remark}\n\n" + make_table(heads, [_cpu_row(line, found["peers"]) for line in found["workloads"]])


def _cpu_row(line: Result, peers: Sequence[str]) -> Sequence[object]:
    cells = [_format(value) for value in line["median"].values()]
    gain = f"{_gain(line, peers):.2f}" if peers else ""
    return (f"{line['name']} {line['about']}", line["tokens"], line["unit"], *cells, gain, line["goal"])


def one_stream_parts(results: Path) -> list[str]:
    """Returns the section that compares one stream with the memory's speed, `[]` if there are no results."""
    found = read_runs(results, "one_stream")
    if not found:
        return []
    tables = "\n".join(_one_stream_text(one["results"]) + name_source(one) for one in found)
    return ["## One stream and the memory's speed\n\n" + tables]


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
        f"{found['shape']} with random weights, {isa}over HTTP, {found['threads']} threads, medians. Each token reads "
        "all weights, K and V once. Probes between the answers measure the memory's speed. A share can exceed 100%, "
        "because the last-level cache keeps some data from one token to the next.\n\n"
    )
    return intro + make_table(("format", "tok/s", "GB/s", "memory, GB/s", "share", "goal"), rows)


def step_kernels_parts(results: Path) -> list[str]:
    """Returns the section about the time of a step's C kernels, `[]` if there are no results."""
    found = read_runs(results, "step_kernels")
    if not found:
        return []
    tables = "\n".join(_step_kernels_text(one["results"]) + name_source(one) for one in found)
    return ["## Kernel times of a CPU step\n\n" + tables]


def _step_kernels_text(found: Result) -> str:
    steps, limits = found["steps"], found["limits"]
    names = sorted({name for step in steps for name in step["kernels_ms"]}, key=lambda name: _total(steps, name))[::-1]
    rows: list[Sequence[object]] = []
    for step in steps:
        times = (f"{step['kernels_ms'][name]:.2f}" if name in step["kernels_ms"] else "" for name in names)
        rows.append((step["about"], f"{step['ms']:.1f}", f"{step['least_ms']:.1f}", *times))
    of_products = ""
    if found["format"] == "bfloat16":
        of_products = f" or to multiply at {limits['product GFLOP/s']:,.0f} GFLOP/s"
    intro = (
        f"{found['shape']}, {found['format']}, in one process, medians in ms. The column `at least` is the time to "
        f"read weights, K and V once at {limits['read GB/s']:.0f} GB/s{of_products}, measured just before.\n\n"
    )
    return intro + make_table(("step", "all", "at least", *names), rows)


def _total(steps: Sequence[Result], name: str) -> float:
    return sum(step["kernels_ms"].get(name, 0.0) for step in steps)
