"""The part of docs/PERFORMANCE.md about GPUs, made of the result files `gpu_*.json` that `make bench-gpu` writes."""

from pathlib import Path

from benchmarks.page.text import Result, make_table, read_result

PREFIX = "gpu_"
NOT_RUN = (
    "Not run on a GPU yet: there are no such results. `make bench-gpu` measures the device's limits, every kernel, "
    "steps, the offline benchmark and transformers beside them, and this section is made of what it finds.\n"
)
OWN_FORM = "Triton"


def make_gpu_part(results: Path) -> str:
    """Returns the section for the result files in a directory; without any, one that says so."""
    paths = sorted(results.glob(f"{PREFIX}*.json"), key=lambda path: (path.stem != f"{PREFIX}limits", path.stem))
    found = {path.stem.removeprefix(PREFIX): read_result(results, path.stem) for path in paths}
    if not found:
        return f"## On a GPU\n\n{NOT_RUN}"
    facts: Result = next((result["results"] for result in found.values() if "gpu" in result["results"]), {})
    versions = [f"{what} {facts[what.lower()]}" for what in ("torch", "CUDA", "Triton") if what.lower() in facts]
    where = ", ".join([facts.get("gpu", "no GPU"), *versions])
    parts = [f"## On a GPU\n\n{where}. Medians; kernels run with a cold cache.\n"]
    kernels = {name: result for name, result in found.items() if _is_kernel(name)}
    parts += [_kernel_part(name, result) for name, result in kernels.items()]
    parts += [_plans_part(found["decode_plan"])] if "decode_plan" in found else []
    parts += [_steps_part(found)] if any(name.startswith("step_") for name in found) else []
    parts += [_offline_part(found)] if any(name.startswith("offline_") for name in found) else []
    return "\n".join(parts)


def _is_kernel(name: str) -> bool:
    return not name.startswith(("decode_plan", "step_", "offline_", "transformers_"))


def _kernel_part(name: str, result: Result) -> str:
    """A row for each case: the rate of every form, and which part of the device's limit our own reaches."""
    rows: list[list[str]] = []
    limits: dict[str, float] = result["results"]["limits"]
    forms = list(
        dict.fromkeys(
            head.removesuffix(" ms") for row in result["results"]["rows"] for head in row if head.endswith(" ms")
        )
    )
    for row in result["results"]["rows"]:
        unit, limit = ("GB/s", limits.get("copy GB/s"))
        if any(head.endswith("GFLOP/s") for head in row):
            unit, limit = "GFLOP/s", limits.get("bfloat16 product GFLOP/s")
        rates = [row.get(f"{form} {unit}") for form in forms]
        own = row.get(f"{OWN_FORM} {unit}")
        share = f"{own / limit:.0%}" if own is not None and limit else ""
        rows.append([row["case"], unit, *("" if rate is None else f"{rate:,.0f}" for rate in rates), share])
    measured = ", ".join(f"{what} {value:,.0f}" for what, value in limits.items())
    table = make_table(["", "rate", *forms, f"{OWN_FORM} of the limit"], rows)
    return f"### {name}\n\nMeasured in the same run: {measured}.\n\n{table}{_name_run(result)}"


def _plans_part(result: Result) -> str:
    """A row for each case: what planning its attention adds to a step's preparation on the host."""
    rows = [(row["case"], f"{row['ms']:.3f}") for row in result["results"]["rows"]]
    return "### Planning decode attention, on the host\n\n" + make_table(["", "ms"], rows) + _name_run(result)


def _steps_part(found: dict[str, Result]) -> str:
    """A row for each shape and batch size: with graphs, without, the floor, and transformers' generate."""
    rows: list[list[str]] = []
    shapes = [name.removeprefix("step_") for name in found if name.startswith("step_") and not name.endswith("_eager")]
    for shape in shapes:
        eager, peer = (_times(found.get(name)) for name in (f"step_{shape}_eager", f"transformers_{shape}"))
        for row in found[f"step_{shape}"]["results"]["rows"]:
            num_rows = row["rows"]
            others = [_ms(eager.get(num_rows)), _ms(peer.get(num_rows))]
            floor = [f"{row['floor_ms']:.2f}", f"{row['times_floor']:.2f}"]
            rows.append([shape, f"{num_rows:.0f}", _ms(row["ms"]), others[0], *floor, others[1]])
    heads = ["shape", "rows", "ms", "ms, `--enforce-eager`", "floor ms", "times the floor", "transformers' generate ms"]
    context = found[f"step_{shapes[0]}"]["results"]["context"] if shapes else 0
    about = f"One at a time, {context} tokens before the step's own; the floor reads weights, K and V once.\n\n"
    return (
        "### Decode steps\n\n"
        + about
        + make_table(heads, rows)
        + (_name_run(found[f"step_{shapes[0]}"]) if shapes else "")
    )


def _offline_part(found: dict[str, Result]) -> str:
    rows: list[list[str]] = []
    for name, result in found.items():
        if name.startswith("offline_"):
            line = result["results"]
            flags = " ".join(line["flags"])
            rate, share = f"{line['output_tok_per_s']:,.0f}", f"{line['fraction_of_floor']:.0%}"
            rows.append([name.removeprefix("offline_"), flags, rate, share])
        elif name.startswith("transformers_"):
            line = result["results"]["offline"]
            rate = f"{line['output_tok_per_s']:,.0f}" if "output_tok_per_s" in line else line["reason"]
            rows.append([name.removeprefix("transformers_"), "transformers' continuous batching", rate, ""])
    last = next(result for name, result in found.items() if name.startswith("offline_"))
    return (
        "### The offline benchmark\n\n"
        + make_table(["", "flags", "output tok/s", "of the floor"], rows)
        + _name_run(last)
    )


def _times(result: Result | None) -> dict[float, float]:
    return {row["rows"]: row["ms"] for row in result["results"]["rows"]} if result else {}


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _name_run(result: Result) -> str:
    """The GPU is named once, at the top; the host's CPU says little of it."""
    return f"\n`{result['command']}`, commit {result['commit']}.\n"
