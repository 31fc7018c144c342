"""docs/speed/performance-gpu.md, made from the result files of `make bench-gpu`: one for each kind of GPU."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.page.serving import load_table
from benchmarks.result_file import Result, make_table, read_result

FILES = "gpu*.json"
ABOUT = (
    "# Performance on GPUs\n\nA section for each result file of `make bench-gpu` in `benchmarks/results/` "
    "([how to make one](gpu-run.md)). Medians; kernels run with a cold cache. Compare times of one kind of GPU only.\n"
)
NEVER_RUN = (
    "## What has never run on a GPU\n\nThe kernels of these are compiled for Hopper GPUs and are right in Triton's "
    "interpreter. It runs programs one after another, so it shows no race and no time.\n\n"
    "- *A kernel for long prompts* ([decision 0169](../decisions/0169-long-prompts-from-contiguous-keys.md)), and *the "
    "head's likeliest tokens without logits* ([0170](../decisions/0170-the-head-finds-the-likeliest-token.md)). They "
    "are off. The interpreter has no specialized warps.\n"
    "- *Five kernels a layer for steps of up to 8 rows*, prefetches by attention, and dependent launches "
    "([decision 0167](../decisions/0167-a-layer-of-few-rows-is-five-kernels.md)). They are off. Prefetches and "
    "dependent launches are compiled only: the interpreter has none.\n"
    "- *Products of fp8 codes*, of weights and of attention over an fp8 cache (decisions "
    "[0171](../decisions/0171-fp8-weights-are-multiplied-by-codes.md) and "
    "[0172](../decisions/0172-attention-multiplies-fp8-codes.md)). They are off.\n"
    "- *Latent attention*, fixed launches (`--deterministic`), recurrent states, heads of 512, pages of windows, LoRA, "
    "encoders, and weights of fp8, AWQ and GPTQ. "
    '`make test-gpu ARGS="--only kinds_on_gpu"` compares each with a CPU.\n'
    '- *Several models on one GPU*. `make test-gpu ARGS="--only models_on_gpu"` compares two that share it with a '
    "CPU.\n"
    "- *Several GPUs*.\n"
)
OWN_FORM = "Triton"
SHOWN_KERNELS = 5

Parts = dict[str, Result]


def make_gpu_page(results: Path) -> str:
    """Returns the page for the result files in a directory."""
    return "\n".join([ABOUT, *(make_gpu_part(results, path.stem) for path in sorted(results.glob(FILES))), NEVER_RUN])


def make_gpu_part(results: Path, name: str) -> str:
    """Returns the section for a result file in a directory."""
    parts: Parts = read_result(results, name)["results"]["parts"]
    found = {name: part for name, part in parts.items() if "results" in part}
    facts: Result = next((part["results"] for part in found.values() if "gpu" in part["results"]), {})
    versions = [f"{what} {facts[what.lower()]}" for what in ("torch", "CUDA", "Triton") if what.lower() in facts]
    text = [f"## {facts.get('gpu', 'No GPU')}\n\n{', '.join(versions)} (`{name}.json`).\n"]
    text += [_golden_part(found["golden"])] if "golden" in found else []
    text += [_steps_part(found)] if _named(found, "step_") else []
    text += [_step_kernels_part(found)] if any(_kernels_of(part) for part in _named(found, "step_").values()) else []
    text += [_prefill_part(found)] if _named(found, "prefill_") else []
    text += [_offline_part(found)] if _named(found, "offline_") else []
    text += [_http_part(name, part) for name, part in _named(found, "http_").items()]
    text += [_tuning_part(_named(found, "tuning_"))] if _named(found, "tuning_") else []
    text += [_kernel_part(name, part) for name, part in _named(found, "kernel_").items()]
    text += [_plans_part(found["decode_plan"])] if "decode_plan" in found else []
    failed = {name: part["reason"] for name, part in parts.items() if part["state"] != "ok"}
    text += ["### What failed\n\n" + make_table(["part", "why"], failed.items())] if failed else []
    return "\n".join(text)


def _named(found: Parts, prefix: str) -> Parts:
    """Returns the parts of one kind by what follows in their names."""
    return {name.removeprefix(prefix): part for name, part in found.items() if name.startswith(prefix)}


def _golden_part(part: Result) -> str:
    """A row for each model and number format, with the tokens that each form has alike."""
    rows: dict[tuple[str, str], list[str]] = {}
    for line in part["results"]["findings"]:
        row = rows.setdefault((line["model"], line["dtype"]), [f"{line['num_tokens']:,}"])
        row.append(f"{line['form']}: {line['error'] or line['num_same_tokens']}")
    cells = [[*which, tokens, ", ".join(forms)] for which, (tokens, *forms) in rows.items()]
    about = "In float32 all must be alike; in bfloat16 rounding may choose another token, and what follows differs.\n\n"
    heads = ["model", "dtype", "tokens", "as recorded"]
    return "### Recorded tokens of trained models\n\n" + about + make_table(heads, cells) + _name_run(part)


def _kernel_part(name: str, part: Result) -> str:
    """A row for each case: the rate of every form, and which part of the device's limit our own reaches."""
    rows: list[list[str]] = []
    limits: dict[str, float] = part["results"]["limits"]
    heads = dict.fromkeys(head for row in part["results"]["rows"] for head in row)
    forms = [head.removesuffix(" ms") for head in heads if head.endswith(" ms")]
    for row in part["results"]["rows"]:
        unit, limit = ("GB/s", limits.get("copy GB/s"))
        if any(head.endswith("GFLOP/s") for head in row):
            unit, limit = "GFLOP/s", limits.get("bfloat16 product GFLOP/s")
        rates = [row.get(f"{form} {unit}") for form in forms]
        own = row.get(f"{OWN_FORM} {unit}")
        share = f"{own / limit:.0%}" if own is not None and limit else ""
        rows.append([row["case"], unit, *("" if rate is None else f"{rate:,.0f}" for rate in rates), share])
    measured = ", ".join(f"{what} {value:,.0f}" for what, value in limits.items())
    table = make_table(["", "rate", *forms, f"{OWN_FORM} of the limit"], rows)
    return f"### {name}\n\nMeasured in the same run: {measured}.\n\n{table}{_name_run(part)}"


def _plans_part(part: Result) -> str:
    """A row for each case: what planning its attention adds to a step's preparation on the host."""
    rows = [(row["case"], f"{row['ms']:.3f}") for row in part["results"]["rows"]]
    return "### Planning decode attention, on the host\n\n" + make_table(["", "ms"], rows) + _name_run(part)


def _steps_part(found: Parts) -> str:
    """A row for each shape and batch size, with graphs and without: the step's times, its floor, and transformers'."""
    steps, peers = _named(found, "step_"), _named(found, "transformers_")
    rows: list[list[str]] = []
    for name, part in steps.items():
        peer = {row["rows"]: row["ms"] for row in peers[name]["results"]["rows"]} if name in peers else {}
        for row in part["results"]["rows"]:
            times = [_ms(row.get(what)) for what in ("gpu_ms", "kernel_ms", "host_ms", "ms")]
            floor = [_ms(row["floor_ms"]), f"{row['times_floor']:.2f}"]
            rows.append([name, f"{row['rows']:.0f}", *times, *floor, _ms(peer.get(row["rows"]))])
    heads = ["shape", "rows", "back to back ms", "of it in kernels", "launch, on the host", "alone ms"]
    heads += ["floor ms", "times the floor", "transformers' generate ms"]
    context = _first(steps.values())["results"]["context"]
    about = (
        f"{context} tokens before the step's own. Back to back is by the GPU's clock, with the next step queued; alone "
        "is until the host has the tokens. The floor is the longer of reading weights, K and V once and of "
        "computing.\n\n"
    )
    return "### A decode step's own time\n\n" + about + make_table(heads, rows) + _name_run(_first(steps.values()))


def _step_kernels_part(found: Parts) -> str:
    """A row for each of the longest kernels of the largest batch of each shape."""
    rows: list[list[str]] = []
    for name, part in _named(found, "step_").items():
        kernels = _kernels_of(part)
        total = sum(kernel["us"] for kernel in kernels)
        rows += [
            [
                name,
                f"`{kernel['name']}`",
                f"{kernel['count']:.0f}",
                f"{kernel['us']:.1f}",
                f"{kernel['us'] / total:.0%}",
            ]
            for kernel in kernels[:SHOWN_KERNELS]
        ]
    return "### The kernels of a step, at the largest batch\n\n" + make_table(
        ["shape", "kernel", "times a step", "us a step", "of all"], rows
    )


def _prefill_part(found: Parts) -> str:
    """A row for each shape and prompt length: the step's time, its rate, and its share of the rate of products."""
    parts = _named(found, "prefill_")
    rows = [
        [
            name,
            f"{row['tokens']:,.0f}",
            _ms(row.get("gpu_ms", row["ms"])),
            _ms(row["host_ms"]),
            f"{row['tok/s']:,.0f}",
            f"{row['MFU']:.0%}",
        ]
        for name, part in parts.items()
        for row in part["results"]["rows"]
    ]
    about = (
        "MFU: the operations of the model and of attention, in what a large bfloat16 product reaches in that run.\n\n"
    )
    heads = ["shape", "tokens", "back to back ms", "launch, on the host", "tok/s", "MFU"]
    return "### Steps of one prompt\n\n" + about + make_table(heads, rows) + _name_run(_first(parts.values()))


def _kernels_of(part: Result) -> list[dict[str, Any]]:
    rows = part["results"]["rows"]
    return max(rows, key=lambda row: row["rows"]).get("kernels", []) if rows else []


def _offline_part(found: Parts) -> str:
    rows: list[list[str]] = []
    for name, part in _named(found, "offline_").items():
        line = part["results"]
        rate, share = f"{line['output_tok_per_s']:,.0f}", f"{line['fraction_of_floor']:.0%}"
        rows.append([name, " ".join(line["flags"]), rate, share])
    for name, part in _named(found, "transformers_").items():
        line = part["results"]["offline"]
        rate = f"{line['output_tok_per_s']:,.0f}" if "output_tok_per_s" in line else line["reason"]
        rows.append([name, "transformers' continuous batching", rate, ""])
    table = make_table(["", "flags", "output tok/s", "of the floor"], rows)
    return "### The offline benchmark\n\n" + table + _name_run(_first(_named(found, "offline_").values()))


def _http_part(name: str, part: Result) -> str:
    late = part["results"]["compiled_under_load"]
    return (
        f"### A server of {name}, over HTTP\n\n"
        + load_table({"results": load} for load in part["results"]["loads"])
        + f"\nTriton kernels compiled at load: {part['results']['compiled_at_load']}, under load: {len(late)}.\n"
        + _name_run(part)
    )


def _tuning_part(parts: Parts) -> str:
    """A row for each line of the launch table: the parameters with the least mean time over the best of each case."""
    rows: list[list[object]] = []
    for name, part in parts.items():
        for line in part["results"]["table"]:
            in_use = line["times_best_of_that_in_use"]
            rows.append(
                [
                    name,
                    f"`{line['line']}`",
                    f"{line['times_best']:.2f}",
                    "failed" if in_use is None else f"{in_use:.2f}",
                ]
            )
    heads = ["sweep", "line of the launch table", "times each case's best", "the same, of what is in use"]
    return "### Launch parameters\n\n" + make_table(heads, rows) + _name_run(_first(parts.values()))


def _first(parts: Iterable[Result]) -> Result:
    return next(iter(parts))


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _name_run(part: Result) -> str:
    """The GPU is named once, at the top; the host's CPU matters little."""
    return f"\n`{part['command']}`, commit {part['commit']}.\n"
