"""What a step costs that verifies draft tokens, beside one in which each row feeds one token.

    python -m benchmarks.bench_verify [--model DIR | --shape NAME] [--rows 1 8 32] [--drafts 0 1 3 7 15] [FLAGS]

All rows have as many draft tokens. FLAGS are the server's own. Rounds go through all sizes in turn, so that a slow
minute of the machine falls on all of them; times are medians, launch and choice of tokens included. `cpu_ms` is the CPU
time of this thread: with `--cpu-threads 1` it tells what a step costs on a machine that others use too.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.model_shapes import SHAPES
from benchmarks.result_file import write_result
from benchmarks.shape_runner import load_shape, make_shape
from messages.columns import pack_int32, pack_int64
from messages.config.server import Config
from messages.ring.axes import fill_columns
from messages.ring.steps import ROW, SAMPLED, TOKEN, Batch
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.runner import Runner
from supervisor.flags import parse_flags
from supervisor.run import build_config

PAGE_SIZE = 16
WARM_UP_STEPS = 3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--model", default="", help="a checkpoint (default: the bundled model)")
    add("--shape", choices=SHAPES, help="random weights of this shape instead")
    add("--rows", type=int, nargs="+", default=[1, 8, 32], help="default: 1 8 32")
    add("--drafts", type=int, nargs="+", default=[0, 1, 3, 7, 15], help="draft tokens a row (default: 0 1 3 7 15)")
    add("--context", type=int, default=256, help="tokens before the step's own (default: %(default)s)")
    add("--rounds", type=int, default=30, help="steps of each size (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options, flags = parser.parse_known_args(arguments)
    runner = load(options, flags)
    rows = measure(runner, options)
    for row in rows:
        print("  ".join(f"{name} {value:,.2f}" for name, value in row.items()))
    if options.json:
        settings = {name: getattr(options, name) for name in ("model", "shape", "context", "rounds")}
        write_result(options.json, "verify", {**settings, "flags": flags, "rows": rows})
    return 0


def load(options: argparse.Namespace, flags: list[str]) -> Runner:
    """Returns a runner with pages for the largest step."""
    pages_a_row = -(-(options.context + 1 + max(options.drafts)) // PAGE_SIZE)
    own = ["--device", "cpu", "--block-size", str(PAGE_SIZE), "--num-pages", str(max(options.rows) * pages_a_row + 64)]
    if options.shape:
        return load_shape(make_shape(options.shape), [*own, *flags])
    sections: dict[str, Any] = dict(parse_flags([*own, "--model", options.model, *flags]))
    config: Config = build_config(sections)
    return load_runner(config, lambda text, fraction: None)


def measure(runner: Runner, options: argparse.Namespace) -> list[dict[str, float]]:
    """Returns a row for each number of rows and of draft tokens; `times_decode`: beside the step without drafts."""
    sizes = [(num_rows, num_drafts) for num_rows in options.rows for num_drafts in options.drafts]
    batches = {size: plan_verify(*size, options.context) for size in sizes}
    times: dict[tuple[int, int], list[tuple[float, float]]] = {size: [] for size in sizes}
    for batch in batches.values():
        for _ in range(WARM_UP_STEPS):
            runner.run(batch)
    for _ in range(options.rounds):
        for size, batch in batches.items():
            begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
            runner.run(batch)
            times[size].append((time.perf_counter() - begin_s, time.thread_time() - begin_cpu_s))
    found: list[dict[str, float]] = []
    decode: dict[str, float] = {}
    for num_rows, num_drafts in sizes:
        ms, cpu_ms = (statistics.median(values) * 1e3 for values in zip(*times[num_rows, num_drafts], strict=True))
        row = {"rows": num_rows, "drafts": num_drafts, "ms": ms, "cpu_ms": cpu_ms}
        decode = row if num_drafts == options.drafts[0] else decode
        found.append(row | {"times_decode": ms / decode["ms"], "times_decode_cpu": cpu_ms / decode["cpu_ms"]})
    return found


def plan_verify(num_rows: int, num_drafts: int, context: int) -> Batch:
    """Returns a step of rows with `num_drafts` draft tokens each, every row with pages of its own, greedy."""
    num_tokens = 1 + num_drafts
    pages_a_row = -(-(context + num_tokens) // PAGE_SIZE)
    positions = list(range(context, context + num_tokens))
    columns = fill_columns(
        Batch,
        {ROW: num_rows, TOKEN: num_rows * num_tokens, SAMPLED: num_rows * num_tokens},
        uids=pack_int64(range(num_rows)),
        query_lens=pack_int32([num_tokens] * num_rows),
        context_lens=pack_int32([context] * num_rows),
        token_ids=pack_int32(index % 256 for index in range(num_rows * num_tokens)),
        positions=pack_int32(positions * num_rows),
        slots=pack_int64(row * pages_a_row * PAGE_SIZE + position for row in range(num_rows) for position in positions),
        page_tables=pack_int32(range(num_rows * pages_a_row)),
        sample_tokens=pack_int32(range(num_rows * num_tokens)),
        seeds=pack_int64(range(num_rows * num_tokens)),
        sample_positions=pack_int64([position + 1 for position in positions] * num_rows),
        num_drafts=pack_int32([num_drafts] * num_rows) if num_drafts else b"",
    )
    num_decode_rows = 0 if num_drafts else num_rows
    return Batch(step_id=0, num_decode_rows=num_decode_rows, num_pages_per_row=pages_a_row, **columns)


if __name__ == "__main__":
    raise SystemExit(main())
