"""The duration of a decode step at several batch sizes, compared with its floor.

    python -m benchmarks.bench_step --shape qwen3-0.6b [--rows 1 32 256] [--context 512] [--device cuda] [FLAGS]

FLAGS are server flags, for example --enforce-eager; --fuse NAME adds kernels that are not in use yet. For each batch
size, measures the time until the host has the tokens of a single step and the time until its launch returns. On a GPU,
also measures steps launched back to back by the GPU's clock, the time in kernels, and each kernel. The floor is the
longer of two times: reading the weights and every row's K and V once at the bandwidth of a copy, and computing the
operations at the rate of a large product. Both rates are measured in the same run.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels.measure import copy_bandwidth, gpu_facts, product_rate
from benchmarks.model_shapes import (
    PAGE_SIZE,
    SHAPES,
    TEMPERATURE,
    load_shape,
    make_shape,
    max_positions,
    plan_decode,
    step_bytes,
    step_flop,
    with_states,
    with_window_pages,
)
from benchmarks.result_file import write_result
from kernels.gpu.fusions import FUSIONS, fuse
from messages.errors import SluiceError
from messages.ring.steps import Batch
from scheduler_proc.computing.runner import Runner

WARM_UP_STEPS = 3
LIMIT_ROUNDS = 5
SHOWN_KERNELS = 12

Row = dict[str, object]


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 if the model cannot be run."""
    options, flags = make_parser().parse_known_args(arguments)
    if options.quick:
        options.rows, options.steps = [1], 1
    shape = make_shape(options.shape, 1 if options.quick else None)
    device = torch.device(options.device)
    fuse(*options.fuse)
    begin_s = time.perf_counter()
    try:
        runner = load_shape(shape, [*own_flags(options, shape), *flags])
    except SluiceError as error:
        print(f"bench_step: {error}", file=sys.stderr)
        return 1
    load_s = time.perf_counter() - begin_s
    limits = {
        "copy GB/s": copy_bandwidth(LIMIT_ROUNDS, device),
        "bfloat16 product GFLOP/s": product_rate(LIMIT_ROUNDS, device),
    }
    facts = gpu_facts(device) if device.type == "cuda" else {}
    settings = {
        "shape": options.shape,
        "context": options.context,
        "flags": flags,
        "fuse": options.fuse,
        "temperature": options.temperature,
        "is_quick": options.quick,
    }
    settings |= {"degraded": runner.degraded, "load_s": load_s}
    rows: list[Row] = []
    for row in measure(runner, shape, options, limits):
        show(row)
        rows.append(row)
        # After each one, so that a run that is ended leaves what it has.
        if options.json:
            write_result(options.json, "step", {**facts, **settings, **limits, "rows": rows})
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="qwen3-0.6b", help="default: %(default)s")
    add("--rows", type=int, nargs="+", default=[1, 32, 256], help="batch sizes (default: 1 32 256)")
    add("--context", type=int, default=512, help="tokens before the step (default: %(default)s)")
    add("--steps", type=int, default=50, help="timed steps of each batch size (default: %(default)s)")
    add("--temperature", type=float, default=TEMPERATURE, help="of all rows (default: %(default)s)")
    add("--fuse", nargs="+", choices=FUSIONS, default=[], help="see kernels/gpu/fusions.py")
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--quick", action="store_true", help="one layer, one row, one step, as a smoke test")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    return parser


def own_flags(options: argparse.Namespace, shape: dict[str, object]) -> list[str]:
    """Returns the server's flags by which the runner has room for the largest step, and little more."""
    pages_a_row = -(-(options.context + 1) // PAGE_SIZE)
    own = ["--device", options.device, "--dtype", "bfloat16", "--block-size", str(PAGE_SIZE)]
    own += ["--num-pages", str(max(options.rows) * pages_a_row + 64), "--max-num-seqs", str(max(options.rows))]
    return [*own, "--max-model-len", str(min(max_positions(shape), options.context + 2 * PAGE_SIZE))]


def measure(
    runner: Runner, shape: dict[str, object], options: argparse.Namespace, limits: dict[str, float]
) -> Iterator[Row]:
    """Yields a row for each batch size, with times in ms."""
    for num_rows in options.rows:
        num_keys = options.context + 1
        read_ms = step_bytes(shape, num_rows, num_keys) / limits["copy GB/s"] / 1e6
        compute_ms = step_flop(shape, num_rows, num_keys) / limits["bfloat16 product GFLOP/s"] / 1e6
        floor_ms = max(read_ms, compute_ms)
        times = time_step(runner, plan_decode(num_rows, options.context, options.temperature), options)
        step_ms = times.get("gpu_ms", times["ms"])
        assert isinstance(step_ms, float)
        yield {
            "rows": num_rows,
            **times,
            "floor_read_ms": read_ms,
            "floor_compute_ms": compute_ms,
            "floor_ms": floor_ms,
            "times_floor": step_ms / floor_ms,
            "tok/s": num_rows / step_ms * 1e3,
        }


def time_step(runner: Runner, batch: Batch, options: argparse.Namespace) -> Row:
    """Returns the step's times; those of a GPU where it runs on one, and steps can be launched ahead there."""
    batch = with_states(with_window_pages(batch, runner.windows), runner.states)
    for _ in range(WARM_UP_STEPS):
        runner.run(batch)
    found: Row = {
        "ms": waited_ms(runner, batch, options.steps),
        "host_ms": launch_ms(runner, batch, options.steps),
    }
    if options.device == "cuda":
        if runner.can_overlap:
            found["gpu_ms"] = back_to_back_ms(runner, batch, options.steps)
        found |= list_kernels(runner, batch)
    return found


def list_kernels(runner: Runner, batch: Batch) -> Row:
    """Returns the table of kernels and their sum, or why there is none: the other times are worth having without."""
    try:
        kernels = profile_kernels(lambda: runner.run(batch))
    except RuntimeError as error:
        return {"no_kernels": str(error).split("\n", 1)[0]}
    return {"kernel_ms": sum(kernel.us for kernel in kernels) / 1e3, "kernels": [asdict(kernel) for kernel in kernels]}


def show(row: Row) -> None:
    print(
        "  ".join(f"{name} {value:,.3f}" for name, value in row.items() if isinstance(value, int | float)), flush=True
    )
    kernels = row.get("kernels", [])
    assert isinstance(kernels, list)
    for kernel in kernels[:SHOWN_KERNELS]:
        print(f"  {kernel['us']:10.1f} us  {kernel['count']:7.1f} x  {kernel['name']}", flush=True)


PROFILED_STEPS = 3
MAX_NAME_CHARS = 120


@dataclass(frozen=True)
class KernelTime:
    """A kernel, or copy, of a step: how often it runs in one, and the microseconds of all its runs in one."""

    name: str
    count: float
    us: float


def waited_ms(runner: Runner, batch: Batch, num_steps: int) -> float:
    """Returns the median time of a step from its launch until the host has its tokens."""
    return _median_ms(lambda: runner.run(batch), num_steps, lambda _: None)


def launch_ms(runner: Runner, batch: Batch, num_steps: int) -> float:
    """Returns the median time until a launch returns while nothing else is queued: the host's part of a step.

    A CPU computes the step meanwhile, so that there it is nearly all of it.
    """
    return _median_ms(lambda: runner.launch(batch), num_steps, lambda step: step.result())


def back_to_back_ms(runner: Runner, batch: Batch, num_steps: int) -> float:
    """Returns the GPU's time of a step where the next one is always queued already, by its own clock.

    If the host takes longer to launch a step than the GPU to run it, it is the host's time.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    launched = [runner.launch(batch) for _ in range(num_steps)]
    end.record()
    for step in launched:
        step.result()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / num_steps


def profile_kernels(run: Callable[[], object]) -> list[KernelTime]:
    """Returns what runs on the GPU in one call of `run`, the longest first; torch's profiler (Kineto) records it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        for _ in range(PROFILED_STEPS):
            run()
        torch.cuda.synchronize()
    return tabulate(recorded.key_averages(), PROFILED_STEPS)


def tabulate(events: Iterable[Any], num_steps: int) -> list[KernelTime]:
    """Returns the profiler's averages that have time of a device, for one of `num_steps`, the longest first."""
    found = [
        KernelTime(str(event.key)[:MAX_NAME_CHARS], event.count / num_steps, event.self_device_time_total / num_steps)
        for event in events
        if event.self_device_time_total > 0
    ]
    return sorted(found, key=lambda kernel: -kernel.us)


def _median_ms(call: Callable[[], Any], num_steps: int, finish: Callable[[Any], object]) -> float:
    times: list[float] = []
    for _ in range(num_steps):
        begin_s = time.perf_counter()
        result = call()
        times.append((time.perf_counter() - begin_s) * 1e3)
        finish(result)
    return statistics.median(times)


if __name__ == "__main__":
    raise SystemExit(main())
