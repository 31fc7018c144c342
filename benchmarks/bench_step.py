"""Decode steps of several batch sizes, one at a time, beside what reading weights, K and V once takes.

    python -m benchmarks.bench_step --shape qwen3-0.6b [--rows 1 16 64 256] [--context 512] [--device cuda] [FLAGS]

FLAGS are the server's own, as --enforce-eager. A step's time includes its launch and the way of its tokens to the host.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

from benchmarks.kernels.measure import copy_bandwidth, gpu_facts
from benchmarks.model_bytes import kv_bytes, read_shape, weight_bytes
from benchmarks.model_shapes import SHAPES
from benchmarks.offline_workload import TEMPERATURE
from benchmarks.result_file import write_result
from benchmarks.shape_runner import load_shape, make_shape, max_positions
from messages.axes import fill_columns
from messages.columns import pack_float32, pack_int32, pack_int64
from messages.errors import SluiceError
from messages.steps import ROW, SAMPLED, TOKEN, Batch

PAGE_SIZE = 16
WARM_UP_STEPS = 3
LIMIT_ROUNDS = 5

Row = dict[str, float]


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 where the model cannot be run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="qwen3-0.6b", help="default: %(default)s")
    add("--rows", type=int, nargs="+", default=[1, 16, 64, 256], help="batch sizes (default: 1 16 64 256)")
    add("--context", type=int, default=512, help="tokens before the step's own (default: %(default)s)")
    add("--steps", type=int, default=50, help="timed steps of each batch size (default: %(default)s)")
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--quick", action="store_true", help="one layer, one row, one step: shows that it runs")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options, flags = parser.parse_known_args(arguments)
    if options.quick:
        options.rows, options.steps = [1], 1
    try:
        rows, limit = measure(options, flags)
    except SluiceError as error:
        print(f"bench_step: {error}", file=sys.stderr)
        return 1
    for row in rows:
        print("  ".join(f"{name} {value:,.3f}" for name, value in row.items()))
    if options.json:
        device = torch.device(options.device)
        facts = gpu_facts(device) if device.type == "cuda" else {}
        settings = {"shape": options.shape, "context": options.context, "flags": flags, "is_quick": options.quick}
        write_result(options.json, "step", {**facts, **settings, "copy GB/s": limit, "rows": rows})
    return 0


def measure(options: argparse.Namespace, flags: list[str]) -> tuple[list[Row], float]:
    """Returns a row for each batch size, and the device's GB/s."""
    shape = make_shape(options.shape, 1 if options.quick else None)
    pages_a_row = -(-(options.context + 1) // PAGE_SIZE)
    own = ["--device", options.device, "--dtype", "bfloat16", "--block-size", str(PAGE_SIZE)]
    own += ["--num-pages", str(max(options.rows) * pages_a_row + 64), "--max-num-seqs", str(max(options.rows))]
    own += ["--max-model-len", str(min(max_positions(shape), options.context + 2 * PAGE_SIZE))]
    runner = load_shape(shape, [*own, *flags])
    bytes_per_ms = copy_bandwidth(LIMIT_ROUNDS, torch.device(options.device)) * 1e6
    found: list[Row] = []
    for num_rows in options.rows:
        batch = plan_decode(num_rows, options.context)
        for _ in range(WARM_UP_STEPS):
            runner.run(batch)
        times: list[float] = []
        for _ in range(options.steps):
            begin_s = time.perf_counter()
            runner.run(batch)
            times.append((time.perf_counter() - begin_s) * 1e3)
        ms = statistics.median(times)
        floor_ms = step_bytes(shape, num_rows, options.context + 1) / bytes_per_ms
        found.append(
            {
                "rows": num_rows,
                "ms": ms,
                "floor_ms": floor_ms,
                "times_floor": ms / floor_ms,
                "tok/s": num_rows / ms * 1e3,
            }
        )
    return found, bytes_per_ms / 1e6


def plan_decode(num_rows: int, context: int) -> Batch:
    """Returns a step of one token in each row, every row with pages of its own, as the offline benchmark samples."""
    pages_a_row = -(-(context + 1) // PAGE_SIZE)
    last_slots = [(row * pages_a_row) * PAGE_SIZE + context for row in range(num_rows)]
    columns = fill_columns(
        Batch,
        {ROW: num_rows, TOKEN: num_rows, SAMPLED: num_rows},
        uids=pack_int64(range(num_rows)),
        context_lens=pack_int32([context] * num_rows),
        token_ids=pack_int32(range(num_rows)),
        positions=pack_int32([context] * num_rows),
        slots=pack_int64(last_slots),
        page_tables=pack_int32(range(num_rows * pages_a_row)),
        sample_tokens=pack_int32(range(num_rows)),
        temperatures=pack_float32([TEMPERATURE] * num_rows),
        seeds=pack_int64(range(num_rows)),
        sample_positions=pack_int64([context + 1] * num_rows),
    )
    return Batch(step_id=0, num_decode_rows=num_rows, num_pages_per_row=pages_a_row, **columns)


def step_bytes(shape: dict[str, object], num_rows: int, num_keys: int) -> int:
    """Returns what a decode step must at least read: the weights, and the K and V of every row; bfloat16."""
    config = read_shape(shape, num_keys)
    return weight_bytes(config, 2) + num_rows * num_keys * kv_bytes(config, 2)


if __name__ == "__main__":
    raise SystemExit(main())
