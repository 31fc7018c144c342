"""Sweeps an operation's launch parameters over several cases and prints lines for the launch table.

    python -m benchmarks.tune_launches decode --model Qwen3-0.6B [--json FILE] [--budget-s 120]
    TRITON_INTERPRET=1 python -m benchmarks.tune_launches decode --device cpu --quick       (a smoke test)

The first candidate is the one in use. Each result is checked against plain torch; a candidate that differs is reported
and not chosen. The final table shows the candidate with the least geometric mean of its times over each case's best.
Its lines belong into `TUNED` in `kernels/gpu/tuned_launches.py`.
"""

import argparse
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch

from benchmarks.kernels.measure import Form, copy_bandwidth, gpu_facts, median_ms
from benchmarks.launch_sweeps import SWEEPS, Candidate, Sweep, Trial, pick
from benchmarks.result_file import write_result
from kernels.gpu.launch_table import find_capability
from kernels.gpu.triton_kernels import load_triton_kernels
from tests.kernels.gpu.cases.model_shapes import MODEL_SHAPES

TOLERANCE = 2e-2
"""Limit of the largest difference over the largest value: bfloat16 and another order of sums explain that much."""


@dataclass
class CaseTimes:
    """`times_us` by index of a candidate; what failed, or differs from torch's result, is in `refused`."""

    case: str
    num_bytes: int
    times_us: dict[int, float] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """Rounds of samples, and the `time.monotonic()` after which no candidate is begun."""

    rounds: int
    end_s: float


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 if no candidate ran."""
    options = make_parser().parse_args(arguments)
    device = torch.device(options.device)
    load_triton_kernels(device.type)
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("tune_launches: --device cpu is for Triton's interpreter: set TRITON_INTERPRET=1")
    sweep, shape = SWEEPS[options.operation], MODEL_SHAPES[options.model]
    candidates = list_candidates(sweep, sweep.find_in_use(shape, device), options.quick)
    end_s = time.monotonic() + options.budget_s
    found: list[CaseTimes] = []
    facts = gpu_facts(device) if device.type == "cuda" else {}
    facts |= {"model": options.model, "copy GB/s": copy_bandwidth(1, device) if device.type == "cuda" else None}
    for size in (sweep.quick_size,) if options.quick else sweep.sizes:
        if found and time.monotonic() > end_s:
            print(f"the budget of {options.budget_s:.0f} s is used up: {size[0]} x {size[1]} and after are left out")
            break
        trial = sweep.make_trial(shape, size, device)
        found.append(measure(sweep, trial, candidates, device, Limits(options.rounds, end_s)))
        show(found[-1], candidates)
        if options.json:
            summary = summarize(found, candidates, options.operation, options.model)
            write_result(options.json, "tune_launches", {**facts, **summary})
    chosen = summarize(found, candidates, options.operation, options.model)["table"]
    print("to put into TUNED:", *(f"    {line['line']}" for line in chosen), sep="\n")
    return 0 if chosen else 1


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("operation", choices=SWEEPS, help="what is tuned")
    add("--model", choices=MODEL_SHAPES, default="Qwen3-0.6B", help="whose heads (default: %(default)s)")
    add("--device", choices=("cpu", "cuda"), default="cuda")
    add("--rounds", type=int, default=3, help="of samples of all candidates in turn (default: %(default)s)")
    add("--budget-s", type=float, default=120.0, help="after it no more is begun (default: %(default)s)")
    add("--quick", action="store_true", help="one small case and two candidates, as a smoke test")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    return parser


def list_candidates(sweep: Sweep, in_use: Candidate, is_quick: bool = False) -> list[Candidate]:
    """Returns what is compared, that in use first; quick: it, and one that differs by its last parameter."""
    others = sweep.list_candidates(in_use)
    last = list(in_use)[-1]
    return [in_use, next(each for each in others if each[last] != in_use[last])] if is_quick else [in_use, *others]


def measure(
    sweep: Sweep, trial: Trial, candidates: Sequence[Candidate], device: torch.device, limits: Limits
) -> CaseTimes:
    """Returns the median time of each candidate that gives torch's result; they take turns.

    The first case compiles all kernels, which may take longer than the budget: then it has fewer candidates.
    """
    found = CaseTimes(trial.name, trial.num_bytes)
    forms: dict[str, Form] = {}
    with sweep.put_back_afterwards():
        for index, candidate in enumerate(candidates):
            if forms and time.monotonic() > limits.end_s:
                break
            form = trial.call(candidate)
            trial.out.fill_(float("nan"))
            reason = find_fault(form, trial.out, trial.expected)
            if reason:
                found.refused[index] = reason
            else:
                forms[str(index)] = form
        times = median_ms(forms, limits.rounds, device) if forms else {}
    found.times_us = {int(index): ms * 1e3 for index, ms in times.items()}
    return found


def find_fault(form: Form, out: torch.Tensor, expected: torch.Tensor) -> str:
    """Runs it once; returns what is wrong with it, or nothing. A candidate may need more than a processor has."""
    try:
        form()
        difference = float((out.float() - expected).abs().max() / expected.abs().max())
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:160]}"
    # Not "difference > TOLERANCE": that of NaN is neither above nor below.
    return "" if difference <= TOLERANCE else f"differs from torch by {difference:.1e}"


def summarize(
    found: Sequence[CaseTimes], candidates: Sequence[Candidate], operation: str, model: str
) -> dict[str, Any]:
    """Returns all times with their candidates, and the lines of the launch table that the best one makes."""
    cases = [
        {
            "case": case.case,
            "rows": [
                {**candidates[index], "us": us, "GB/s": case.num_bytes / us / 1e3}
                for index, us in sorted(case.times_us.items(), key=lambda item: item[1])
            ],
            "refused": [{**candidates[index], "reason": why} for index, why in case.refused.items()],
        }
        for case in found
    ]
    best, times_best = choose(found)
    table: list[dict[str, Any]] = []
    if best is not None:
        in_use = _times_best(found, 0)
        times = {"times_best": times_best, "times_best_of_that_in_use": in_use if math.isfinite(in_use) else None}
        for kernel, names in SWEEPS[operation].entries.items():
            key = (find_capability(), kernel, *SWEEPS[operation].key(MODEL_SHAPES[model]))
            table.append({"line": f"{key}: {pick(candidates[best], names)},".replace("'", '"'), **times})
    return {"operation": operation, "in_use": dict(candidates[0]), "cases": cases, "table": table}


def choose(found: Sequence[CaseTimes]) -> tuple[int | None, float]:
    """Returns the candidate of the least mean of its times over each case's best, and that mean; `None`: none ran."""
    ran_in_all = set.intersection(*(set(case.times_us) for case in found)) if found else set[int]()
    if not ran_in_all:
        return None, math.nan
    return min(((index, _times_best(found, index)) for index in ran_in_all), key=lambda each: (each[1], each[0]))


def _times_best(found: Sequence[CaseTimes], index: int) -> float:
    if not all(index in case.times_us for case in found):
        return math.inf
    return geometric_mean(case.times_us[index] / min(case.times_us.values()) for case in found)


def show(case: CaseTimes, candidates: Sequence[Candidate]) -> None:
    print(f"{case.case}: {len(case.refused)} of {len(candidates)} candidates refused")
    for index in [*sorted(case.times_us, key=lambda index: case.times_us[index])[:5], 0]:
        if index in case.times_us:
            us = case.times_us[index]
            print(f"  {us:9.1f} us {case.num_bytes / us / 1e3:8.0f} GB/s  {candidates[index]}", flush=True)
    for index, reason in list(case.refused.items())[:5]:
        print(f"  refused: {candidates[index]}: {reason}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
