"""Benchmarks of single operations: each form in turn, next to the device's bandwidth or rate of products.

    python -m benchmarks.kernels OPERATION [--device cpu|cuda] [--quick] [--json FILE]

TRITON_INTERPRET=1 with --device cpu interprets the Triton forms: this shows that they run, and no more.
"""

import argparse
import sys
from pathlib import Path

import torch

from benchmarks.kernels import attention, layers, linears, sampling
from benchmarks.kernels.measure import Benchmark, finish, prepare

BENCHMARKS: dict[str, Benchmark] = {
    name: benchmark
    for module in (linears, attention, sampling, layers)
    for name, benchmark in module.BENCHMARKS.items()
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    about = "; ".join(f"{name}: {benchmark.about}" for name, benchmark in BENCHMARKS.items())
    add("operation", choices=BENCHMARKS, metavar="OPERATION", help=about)
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: cuda if it is available")
    add("--threads", type=int, default=torch.get_num_threads(), help="on a CPU (default: %(default)s)")
    add("--rounds", type=int, default=9, help="samples of each form, interleaved (default: 9)")
    add("--quick", action="store_true", help="run the first case once, as a smoke test")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 2 if the operation has no benchmark on the device."""
    options = make_parser().parse_args(arguments)
    benchmark = BENCHMARKS[options.operation]
    best = "cuda" if "cuda" in benchmark.devices and torch.cuda.is_available() else "cpu"
    name = best if options.device == "auto" else options.device
    if name not in benchmark.devices:
        print(f"{options.operation} runs on {' and '.join(benchmark.devices)} only", file=sys.stderr)
        return 2
    options.device = torch.device(name)
    options.rounds = 1 if options.quick else options.rounds
    prepare(options)
    rows, found_limits = benchmark.measure(options)
    finish(options, options.operation, rows, found_limits)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
