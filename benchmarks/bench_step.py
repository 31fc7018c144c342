"""A decode step's own time at several batch sizes, beside the least that its bytes and operations can take.

    python -m benchmarks.bench_step --shape qwen3-0.6b [--rows 1 32 256] [--context 512] [--device cuda] [FLAGS]

FLAGS are the server's own, as --enforce-eager. Of each batch size: ms until the host has the tokens of a step that is
alone; ms until its launch returns; on a GPU also ms of steps launched back to back, by the GPU's clock, ms in which
kernels run, and a table of them. The floor is the longer of two times: that of reading the weights and every row's K
and V once, at the bandwidth of a copy, and that of the operations, at the rate of a large product; both are measured
in the same run.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.decode_step import PAGE_SIZE, plan_decode, step_bytes, step_flop
from benchmarks.kernels.measure import copy_bandwidth, gpu_facts, product_rate
from benchmarks.model_shapes import SHAPES
from benchmarks.result_file import write_result
from benchmarks.shape_runner import load_shape, make_shape, max_positions
from benchmarks.step_clock import back_to_back_ms, launch_ms, profile_kernels, waited_ms
from messages.errors import SluiceError
from messages.ring.steps import Batch
from scheduler_proc.computing.runner import Runner

WARM_UP_STEPS = 3
LIMIT_ROUNDS = 5
SHOWN_KERNELS = 12

Row = dict[str, object]


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 where the model cannot be run."""
    options, flags = make_parser().parse_known_args(arguments)
    if options.quick:
        options.rows, options.steps = [1], 1
    shape = make_shape(options.shape, 1 if options.quick else None)
    device = torch.device(options.device)
    try:
        runner = load_shape(shape, [*own_flags(options, shape), *flags])
    except SluiceError as error:
        print(f"bench_step: {error}", file=sys.stderr)
        return 1
    limits = {
        "copy GB/s": copy_bandwidth(LIMIT_ROUNDS, device),
        "bfloat16 product GFLOP/s": product_rate(LIMIT_ROUNDS, device),
    }
    facts = gpu_facts(device) if device.type == "cuda" else {}
    settings = {"shape": options.shape, "context": options.context, "flags": flags, "is_quick": options.quick}
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
    add("--context", type=int, default=512, help="tokens before the step's own (default: %(default)s)")
    add("--steps", type=int, default=50, help="timed steps of each batch size (default: %(default)s)")
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--quick", action="store_true", help="one layer, one row, one step: shows that it runs")
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
        times = time_step(runner, plan_decode(num_rows, options.context), options)
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


if __name__ == "__main__":
    raise SystemExit(main())
