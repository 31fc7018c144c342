"""The bandwidth at which a decode step of one row reads the weights that it needs, compared with plain reads.

    python -m benchmarks.experiments.experts_0110.bench_read_share [--shape qwen3-a3b-50k] [--layers 2] [FLAGS]

FLAGS are the server's, for example --quantization int8. One thread computes, and its CPU time is measured: other
programs on the machine do not count, except for what they read. Steps and reads take turns.
"""

import argparse
import itertools
import time
from collections.abc import Callable

import torch

from benchmarks.model_shapes import SHAPES, load_shape, make_shape, plan_decode, step_bytes
from kernels.cpu.huge_pages import empty_huge
from kernels.operations.packed_linear import packed_linear

CONTEXT, ROUNDS, NUM_PIECES = 16, 40, 6
BLOCKS, INPUTS = 390, 2048
"""The sizes of a weight that is read as a whole: 51 MB, more than the caches hold."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-a3b-50k")
    parser.add_argument("--layers", type=int, default=2)
    options, flags = parser.parse_known_args()
    shape = make_shape(options.shape, options.layers)
    sizes = ["--num-pages", "64", "--max-num-seqs", "8", "--max-model-len", "128"]
    runner = load_shape(shape, ["--device", "cpu", "--dtype", "bfloat16", "--cpu-threads", "1", *sizes, *flags])
    torch.set_num_threads(1)
    pieces = [empty_huge((BLOCKS, INPUTS // 2, 32, 2), torch.bfloat16).fill_(0.01) for _ in range(NUM_PIECES)]
    turns, x, step = itertools.cycle(pieces), torch.ones(1, INPUTS).bfloat16(), plan_decode(1, CONTEXT)
    steps_s, reads_s = list[float](), list[float]()
    for _ in range(ROUNDS):
        steps_s.append(cpu_s(lambda: runner.run(step)))
        reads_s.append(cpu_s(lambda: packed_linear(x, next(turns), None, BLOCKS * 32)))
    names = {"int8": "int8", "int4": "int4"}
    weight_format = next((names[flag] for flag in flags if flag in names), "bfloat16")
    num_bytes = step_bytes(shape, 1, CONTEXT + 1, weight_format)
    step_rate, read_rate = num_bytes / typical(steps_s) / 1e9, pieces[0].nbytes / typical(reads_s) / 1e9
    print(f"{weight_format}: {num_bytes / 1e6:.0f} MB in {typical(steps_s) * 1e3:.2f} ms: {step_rate:.1f} GB/s")
    print(f"reads: {read_rate:.1f} GB/s; the step has {step_rate / read_rate:.2f} of it")


def cpu_s(work: Callable[[], object]) -> float:
    begin_s = time.process_time()
    work()
    return time.process_time() - begin_s


def typical(times_s: list[float]) -> float:
    """The time that a twentieth of the samples is below."""
    return sorted(times_s)[len(times_s) // 20]


if __name__ == "__main__":
    main()
