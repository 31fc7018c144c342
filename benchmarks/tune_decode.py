"""A sweep of decode attention's launch parameters: the time of each in several cases, and the one to put into use.

    python -m benchmarks.tune_decode --model Qwen3-0.6B [--json FILE] [--budget-s 120]
    TRITON_INTERPRET=1 python -m benchmarks.tune_decode --device cpu --quick       (shows that it runs)

Of a candidate: the keys of a block, warps, stages, programs a processor, and whether the kernel merges parts itself.
The first one is in use now. Each result is compared with plain torch's; one that differs is told and not chosen. The
table at the end has the candidate whose times, over the best of each case, have the least geometric mean.
"""

import argparse
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import torch

from benchmarks.kernels.bench_paged_decode import plan_work
from benchmarks.kernels.cases import Case, MadeCase, make_case
from benchmarks.kernels.measure import Form, copy_bandwidth, gpu_facts, median_ms
from benchmarks.result_file import write_result
from kernels.decode_work import DecodeLayout, DecodeWork, make_decode_scratch, plan_decode_work
from kernels.gpu import paged_decode as triton_decode
from kernels.gpu.model_shapes import MODEL_SHAPES, ModelShape
from kernels.gpu.triton_kernels import load_triton_kernels
from kernels.paged_decode import paged_decode, paged_decode_reference

ROWS_AND_CONTEXTS = ((256, 512), (64, 512), (1, 512), (64, 8192), (256, 1024), (1, 8192))
LAUNCHES = (
    (64, 4, 3),
    (64, 4, 4),
    (64, 4, 2),
    (64, 2, 3),
    (32, 4, 3),
    (32, 2, 4),
    (128, 4, 2),
    (128, 4, 3),
    (128, 8, 3),
)
"""Keys of a block, warps, stages."""
PROGRAMS = (2, 3, 4, 6, 8)
TOLERANCE = 2e-2
"""Of the largest difference, over the largest value: what bfloat16 and another order of sums explain."""


@dataclass(frozen=True)
class Candidate:
    """What `kernels.gpu.paged_decode` is launched with; the names are those of its parameters."""

    BLOCK_N: int
    num_warps: int
    num_stages: int
    programs: int
    """A processor: the work list is cut until about as many have an item."""
    merges: bool


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
    """Returns 0, 1 where no candidate ran."""
    options = make_parser().parse_args(arguments)
    device = torch.device(options.device)
    load_triton_kernels(device.type)
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("tune_decode: --device cpu is for Triton's interpreter: set TRITON_INTERPRET=1")
    shape = MODEL_SHAPES[options.model]
    candidates = list_candidates(shape.head_dim, programs_in_use(shape, device), options.quick)
    sizes = ((2, 100),) if options.quick else ROWS_AND_CONTEXTS
    end_s = time.monotonic() + options.budget_s
    found: list[CaseTimes] = []
    facts = gpu_facts(device) if device.type == "cuda" else {}
    facts |= {"model": options.model, "copy GB/s": copy_bandwidth(1, device) if device.type == "cuda" else None}
    for num_rows, context in sizes:
        if found and time.monotonic() > end_s:
            print(f"the budget of {options.budget_s:.0f} s is used up: {num_rows} x {context} and after are left out")
            break
        case = Case(shape.num_heads, shape.num_kv_heads, shape.head_dim, num_rows, 1, context - 1)
        found.append(measure(case, f"{num_rows} x {context}", candidates, device, Limits(options.rounds, end_s)))
        show(found[-1], candidates)
        if options.json:
            write_result(options.json, "tune_decode", {**facts, **summarize(found, candidates, options.model)})
    chosen = summarize(found, candidates, options.model)["table"]
    print(f"to put into use: {chosen}")
    return 0 if chosen else 1


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", choices=MODEL_SHAPES, default="Qwen3-0.6B", help="whose heads (default: %(default)s)")
    add("--device", choices=("cpu", "cuda"), default="cuda")
    add("--rounds", type=int, default=3, help="of samples of all candidates in turn (default: %(default)s)")
    add("--budget-s", type=float, default=120.0, help="after it no more is begun (default: %(default)s)")
    add("--quick", action="store_true", help="one small case and two candidates: shows that it runs")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    return parser


def programs_in_use(shape: ModelShape, device: torch.device) -> int:
    """Returns the programs a processor for which work lists are planned now."""
    case = Case(shape.num_heads, shape.num_kv_heads, shape.head_dim, 1, 1, 15)
    work = plan_work(case, make_case(case, device), shares_prefixes=False, merges_in_kernel=False)
    return work.layout.num_programs // count_processors(device)


def count_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def list_candidates(head_dim: int, num_programs: int, is_quick: bool = False) -> list[Candidate]:
    """Returns what is compared, that in use first, which is planned for `num_programs` a processor."""
    now = _choose_launch(head_dim, torch.bfloat16)
    in_use = Candidate(now["BLOCK_N"], now["num_warps"], now["num_stages"], num_programs, merges=False)
    every = [
        Candidate(block, warps, stages, programs, merges)
        for (block, warps, stages), programs, merges in product(LAUNCHES, PROGRAMS, (False, True))
    ]
    found = [in_use, *(candidate for candidate in every if candidate != in_use)]
    return [in_use, next(each for each in found if each.merges)] if is_quick else found


def measure(case: Case, name: str, candidates: Sequence[Candidate], device: torch.device, limits: Limits) -> CaseTimes:
    """Returns the median time of each candidate that gives torch's result; they take turns.

    The first case compiles all kernels, which may take longer than the budget: then it has fewer candidates.
    """
    # The interpreter is right for float32; what it takes says nothing anyway.
    made = make_case(case, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    num_keys = torch.full((case.num_rows,), case.num_before + 1, dtype=torch.int32, device=device)
    attend = partial(paged_decode, made.query, made.cache, made.page_tables, num_keys, case.head_dim**-0.5, made.out)
    paged_decode_reference(*attend.args)
    expected = made.out.float().clone()
    found = CaseTimes(name, 2 * case.num_rows * (case.num_before + 1) * case.num_kv_heads * case.head_dim * 2)
    works: dict[tuple[int, bool], DecodeWork] = {}
    forms: dict[str, Form] = {}
    with put_back_afterwards():
        for index, candidate in enumerate(candidates):
            if forms and time.monotonic() > limits.end_s:
                break
            cut = candidate.programs, candidate.merges
            if cut not in works:
                works[cut] = plan(case, made, *cut)
            form = launcher(candidate, attend, works[cut])
            made.out.fill_(float("nan"))
            reason = find_fault(form, made.out, expected)
            if reason:
                found.refused[index] = reason
            else:
                forms[str(index)] = form
        times = median_ms(forms, limits.rounds, device) if forms else {}
    found.times_us = {int(index): ms * 1e3 for index, ms in times.items()}
    return found


def launcher(candidate: Candidate, attend: partial[None], work: DecodeWork) -> Form:
    """Returns a call of the operation with these parameters, which replace those that the kernel would choose."""
    query = attend.args[0]
    launch = _choose_launch(query.shape[-1], query.dtype)
    launch |= {name: getattr(candidate, name) for name in ("BLOCK_N", "num_warps", "num_stages")}

    def call() -> None:
        triton_decode.choose_launch = lambda head_dim, dtype: launch
        attend(work)

    return call


_choose_launch = triton_decode.choose_launch


@contextmanager
def put_back_afterwards() -> Iterator[None]:
    """The kernel chooses for itself again."""
    try:
        yield
    finally:
        triton_decode.choose_launch = _choose_launch


def find_fault(form: Form, out: torch.Tensor, expected: torch.Tensor) -> str:
    """Runs it once; returns what is wrong with it, or nothing. A candidate may need more than a processor has."""
    try:
        form()
        difference = float((out.float() - expected).abs().max() / expected.abs().max())
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:160]}"
    # Not "difference > TOLERANCE": that of NaN is neither above nor below.
    return "" if difference <= TOLERANCE else f"differs from torch by {difference:.1e}"


def plan(case: Case, made: MadeCase, programs: int, merges: bool) -> DecodeWork:
    device = made.query.device
    num_programs = programs * count_processors(device)
    layout = DecodeLayout(case.num_rows, case.num_heads, case.num_kv_heads, num_programs, case.num_rows > 1, merges)
    words = torch.zeros(layout.num_words, dtype=torch.int32)
    num_keys = np.full(case.num_rows, case.num_before + 1, np.int32)
    plan_decode_work(layout, num_keys, made.page_tables.cpu().numpy(), made.cache.page_size, words.numpy())
    return DecodeWork(layout, words.to(device), make_decode_scratch(layout, case.head_dim, device))


def summarize(found: Sequence[CaseTimes], candidates: Sequence[Candidate], model: str) -> dict[str, object]:
    """Returns all times with their candidates, and the table: the model's heads and what to launch them with."""
    cases = [
        {
            "case": case.case,
            "rows": [
                asdict(candidates[index]) | {"us": us, "GB/s": case.num_bytes / us / 1e3}
                for index, us in sorted(case.times_us.items(), key=lambda item: item[1])
            ],
            "refused": [asdict(candidates[index]) | {"reason": why} for index, why in case.refused.items()],
        }
        for case in found
    ]
    best, times_best = choose(found)
    table: list[dict[str, object]] = []
    if best is not None:
        shape = MODEL_SHAPES[model]
        heads = {"num_heads": shape.num_heads, "num_kv_heads": shape.num_kv_heads, "head_dim": shape.head_dim}
        in_use = _times_best(found, 0)
        times = {"times_best": times_best, "times_best_of_that_in_use": in_use if math.isfinite(in_use) else None}
        table = [{**heads, **asdict(candidates[best]), **times}]
    return {"in_use": asdict(candidates[0]), "cases": cases, "table": table}


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
