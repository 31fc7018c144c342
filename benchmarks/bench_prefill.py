"""The duration of a step that computes one prompt, and its share of the device's rate of products.

    python -m benchmarks.bench_prefill --shape qwen3-0.6b [--tokens 128 512 2048 8192] [--device cuda] [FLAGS]

FLAGS are server flags. The times are those of `benchmarks.bench_step`. The share (MFU) is that of the operations of the
model and of causal attention in what a large product reaches in the same run.
"""

import argparse
import sys
from pathlib import Path

import torch

from benchmarks.bench_step import LIMIT_ROUNDS, Row, show, time_step
from benchmarks.kernels.measure import gpu_facts, product_rate
from benchmarks.model_shapes import PAGE_SIZE, SHAPES, load_shape, make_shape, max_positions, plan_prefill, prefill_flop
from benchmarks.result_file import write_result
from kernels.gpu.fusions import FUSIONS, fuse
from messages.errors import SluiceError


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 if the model cannot be run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="qwen3-0.6b", help="default: %(default)s")
    add("--tokens", type=int, nargs="+", default=[128, 512, 2048, 8192], help="default: 128 512 2048 8192")
    add("--steps", type=int, default=20, help="timed steps of each length (default: %(default)s)")
    add("--fuse", nargs="+", choices=FUSIONS, default=[], help="see kernels/gpu/fusions.py")
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--quick", action="store_true", help="one layer and one step of 16 tokens, as a smoke test")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options, flags = parser.parse_known_args(arguments)
    if options.quick:
        options.tokens, options.steps = [16], 1
    try:
        measure(options, flags)
    except SluiceError as error:
        print(f"bench_prefill: {error}", file=sys.stderr)
        return 1
    return 0


def measure(options: argparse.Namespace, flags: list[str]) -> None:
    """Prints and writes a row for each length, after each. Raises `SluiceError`."""
    fuse(*options.fuse)
    shape = make_shape(options.shape, 1 if options.quick else None)
    lengths = [length for length in options.tokens if length < max_positions(shape)]
    longest = max(lengths)
    own = ["--device", options.device, "--dtype", "bfloat16", "--block-size", str(PAGE_SIZE)]
    own += ["--num-pages", str(longest // PAGE_SIZE + 64), "--max-num-batched-tokens", str(longest)]
    runner = load_shape(shape, [*own, "--max-num-seqs", "16", "--max-model-len", str(longest), *flags])
    device = torch.device(options.device)
    rate = product_rate(LIMIT_ROUNDS, device)
    facts = gpu_facts(device) if device.type == "cuda" else {}
    facts |= {
        "shape": options.shape,
        "flags": flags,
        "fuse": options.fuse,
        "degraded": runner.degraded,
        "bfloat16 product GFLOP/s": rate,
    }
    rows: list[Row] = []
    for length in lengths:
        times = time_step(runner, plan_prefill(length), options)
        step_ms = times.get("gpu_ms", times["ms"])
        assert isinstance(step_ms, float)
        flop = prefill_flop(shape, length)
        row: Row = {"tokens": length, **times, "tok/s": length / step_ms * 1e3, "MFU": flop / step_ms / 1e6 / rate}
        show(row)
        rows.append(row)
        if options.json:
            write_result(options.json, "prefill", {**facts, "rows": rows})


if __name__ == "__main__":
    raise SystemExit(main())
