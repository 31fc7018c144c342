"""The duration of a decode step whose rows have no adapter, all the same one, or several, in turns.

    python -m benchmarks.experiments.lora_0118.bench_adapters [--gguf FILE] [--rows 32] [--rank 16] [FLAGS]

FLAGS are the server's. Weights are random, or those of a GGUF file of the shape; the updates are random, of all linear
layers. Each round has a step of every kind, and the ratio of two kinds is the median of the rounds' ratios: other
programs on the machine slow down both.
"""

import argparse
import itertools
import statistics
import time
from pathlib import Path

import torch
from msgspec.structs import replace

from benchmarks.model_shapes import PAGE_SIZE, SHAPES, load_shape, make_shape, plan_decode
from benchmarks.result_file import write_result
from messages.columns import pack_int32
from messages.ring.steps import Batch
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.model.adapters import HostAdapter, LowRank
from scheduler_proc.computing.runner import Runner
from supervisor.flags import parse_flags
from supervisor.run import build_config

NUM_ADAPTERS, CONTEXT = 8, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--gguf", help="a file of the shape, in place of random weights")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=40)
    about_cpu = "measure the process's CPU time; with --cpu-threads 1, other programs then hardly count"
    parser.add_argument("--cpu-time", action="store_true", help=about_cpu)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options, flags = parser.parse_known_args()
    pages = options.rows * (CONTEXT // PAGE_SIZE + 1) + 64
    sizes = ["--num-pages", str(pages), "--max-num-seqs", str(options.rows), "--max-model-len", "256"]
    flags = ["--dtype", "bfloat16", *sizes, "--max-loras", str(NUM_ADAPTERS), *flags]
    if options.gguf:
        config = build_config(dict(parse_flags(["--model", options.gguf, *flags])))
        runner = load_runner(config, lambda text, fraction: None)
    else:
        runner = load_shape(make_shape(options.shape), flags)
    place_adapters(runner, options.rank)
    plain = plan_decode(options.rows, CONTEXT)
    steps = {"none": plain}
    for name, num_used in (("one", 1), ("all", NUM_ADAPTERS)):
        slots = [row % num_used for row in range(options.rows)]
        steps[name] = replace(plain, adapter_slots=pack_int32(slots))
    medians = measure(runner, steps, options)
    for name, (milliseconds, ratio) in medians.items():
        print(f"{name:5} {milliseconds:8.2f} ms  {ratio:.3f}")
    if options.json:
        results = {name: {"ms": milliseconds, "ratio": ratio} for name, (milliseconds, ratio) in medians.items()}
        write_result(options.json, "adapters", results)


def place_adapters(runner: Runner, rank: int) -> None:
    """Puts an adapter of this rank into each slot."""
    adapters = runner.adapters
    assert adapters is not None
    for slot in range(NUM_ADAPTERS):
        linears: dict[str, list[LowRank | None]] = {}
        for name, lora in adapters.slots.linears.items():
            begins = [0, *lora.ends.tolist()]
            linears[name] = [
                LowRank(make_matrix(rank, lora.a.shape[3]), make_matrix(rank, end - begin), 2.0)
                for begin, end in itertools.pairwise(begins)
            ]
        runner.place_adapter(slot, HostAdapter("", rank, linears))


def make_matrix(*shape: int) -> torch.Tensor:
    return torch.randn(shape).mul_(0.02).bfloat16()


def measure(runner: Runner, steps: dict[str, Batch], options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Returns for each kind the median in ms, and of the rounds' ratios to the first kind."""
    times_s: dict[str, list[float]] = {name: [] for name in steps}
    for step in [*steps.values()] * 2:
        runner.run(step)
    clock = time.process_time if options.cpu_time else time.perf_counter
    for _ in range(options.rounds):
        for name, step in steps.items():
            begin_s = clock()
            runner.run(step)
            times_s[name].append(clock() - begin_s)
    first = next(iter(times_s.values()))
    return {
        name: (statistics.median(all_s) * 1e3, statistics.median(a / b for a, b in zip(all_s, first, strict=True)))
        for name, all_s in times_s.items()
    }


if __name__ == "__main__":
    main()
