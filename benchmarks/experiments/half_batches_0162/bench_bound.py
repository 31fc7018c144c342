"""What a decode step on a CPU could gain if one half of its rows computed linears while the other half attends.

    python -m benchmarks.experiments.half_batches_0162.bench_bound [--rows 32] [--context 192] [--rounds 15] --json FILE

The linears and the attention of GPT-2 in bfloat16 run alone, with all threads and with one, and as halves: a thread
computes linears of half the rows while another attends with the other half. Forms take turns; results are medians in
ms. Today's step is the linears and then the attention. The bound of half batches is their work at the rates of two
threads that compute different halves.
"""

import argparse
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.result_file import write_result
from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.paged_kv import PagedKV
from kernels.cpu.huge_pages import empty_huge
from kernels.cpu.library import load_kernels
from kernels.operations.packed_linear import pack, packed_linear
from kernels.operations.paged_decode import paged_decode

LAYERS, HEADS, HEAD_DIM, VOCABULARY, PAGE_SIZE = 12, 12, 64, 50257, 16
SIZE = HEADS * HEAD_DIM
SHAPES = [(3 * SIZE, SIZE), (SIZE, SIZE), (4 * SIZE, SIZE), (SIZE, 4 * SIZE)] * LAYERS + [(VOCABULARY, SIZE)]
"""Outputs and inputs of each linear."""

Compute = Callable[[], None]


@dataclass(frozen=True)
class Step:
    """The weights of all layers, and K and V of `num_rows` rows of `context` tokens."""

    weights: list[torch.Tensor]
    caches: list[PagedKV]
    context: int

    def linears(self, num_rows: int) -> Compute:
        inputs = {size: torch.randn(num_rows, size).bfloat16() for size in (SIZE, 4 * SIZE)}
        outs = {size: torch.empty(num_rows, size, dtype=torch.bfloat16) for size, _ in SHAPES}

        def compute() -> None:
            for weight, (num_outputs, num_inputs) in zip(self.weights, SHAPES, strict=True):
                packed_linear(inputs[num_inputs], weight, None, num_outputs, None, outs[num_outputs])

        return compute

    def attention(self, rows: range, caches: list[PagedKV] | None = None) -> Compute:
        query = torch.randn(len(rows), HEADS, HEAD_DIM).bfloat16()
        num_pages = -(-self.context // PAGE_SIZE)
        first, end = rows.start * num_pages, rows.stop * num_pages
        tables = torch.arange(first, end, dtype=torch.int32).view(len(rows), num_pages)
        num_keys, out = torch.full((len(rows),), self.context, dtype=torch.int32), torch.empty_like(query)
        options = AttentionOptions(scale=HEAD_DIM**-0.5)

        def compute() -> None:
            for cache in caches or self.caches:
                paged_decode(query, cache, tables, num_keys, options, out)

        return compute


def main(arguments: list[str] | None = None) -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32, help="default: %(default)s")
    parser.add_argument("--context", type=int, default=192, help="tokens a row (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    load_kernels(lambda about, fraction: None)
    results = summarize(measure(_make_step(options.rows, options.context), options.rows, options.rounds))
    for name, value in results.items():
        print(f"{name:56} {value:8.2f}")
    if options.json:
        write_result(options.json, "half_batches", {"rows": options.rows, "context": options.context, **results})
    return 0


def measure(step: Step, num_rows: int, rounds: int) -> dict[str, float]:
    """Returns the median ms of each form; those of one thread are for a thread's own work."""
    half = range(num_rows // 2)
    linears, attention = step.linears(num_rows), step.attention(range(num_rows))
    half_linears, half_attention = step.linears(len(half)), step.attention(half)
    in_cache = step.attention(range(num_rows), step.caches[:1] * LAYERS)
    num_threads = torch.get_num_threads()
    times: dict[str, list[float]] = defaultdict(list)
    for index in range(-2, rounds):
        found: dict[str, float] = {}
        for threads, label in ((num_threads, "all threads"), (1, "one thread")):
            torch.set_num_threads(threads)
            found[f"linears, {label}"] = _time(linears)
            found[f"attention, {label}"] = _time(attention)
            found[f"attention of one layer's K and V, {label}"] = _time(in_cache)
            found[f"linears of half the rows, {label}"] = _time(half_linears)
            found[f"attention of half the rows, {label}"] = _time(half_attention)
        found |= _together(half_linears, half_attention)
        torch.set_num_threads(num_threads)
        for name, ms in found.items() if index >= 0 else ():
            times[name].append(ms)
    return {name: statistics.median(values) for name, values in times.items()}


def summarize(ms: dict[str, float]) -> dict[str, float]:
    """Returns the times, today's step, and the bounds of other orders of the same work on two threads."""
    step = ms["linears, all threads"] + ms["attention, all threads"]
    attends = 2 * ms["attention of half the rows, together"]
    linears = 2 * ms["linears of half the rows, together"]
    whole = ms["linears, one thread"] + ms["attention, one thread"]
    ahead = ms["linears, all threads"] + ms["attention of one layer's K and V, all threads"]
    return {
        **ms,
        "step today": step,
        "bound of half batches on two threads": (attends + linears) / 2,
        "bound of whole batches that overlap on two threads": whole / 2,
        "bound with K and V read into the cache by the linears": ahead,
    }


def _together(linears: Compute, attention: Compute) -> dict[str, float]:
    """Returns the ms of each while another thread computes the other all the time."""
    are_over, linear_ms, attention_ms = threading.Event(), list[float](), list[float]()

    def attend() -> None:
        torch.set_num_threads(1)  # a number of the calling thread
        while not are_over.is_set():
            attention_ms.append(_time(attention))

    other = threading.Thread(target=attend)
    other.start()
    torch.set_num_threads(1)
    linear_ms += [_time(linears) for _ in range(2)]
    are_over.set()
    other.join()
    return {
        "linears of half the rows, together": statistics.median(linear_ms),
        "attention of half the rows, together": statistics.median(attention_ms),
    }


def _time(compute: Compute) -> float:
    begin_s = time.perf_counter()
    compute()
    return (time.perf_counter() - begin_s) * 1e3


def _make_step(num_rows: int, context: int) -> Step:
    slots = num_rows * -(-context // PAGE_SIZE) * PAGE_SIZE
    weights = [pack(torch.randn(shape).bfloat16()) for shape in SHAPES]
    caches = [PagedKV(_random(slots), _random(slots), PAGE_SIZE) for _ in range(LAYERS)]
    return Step(weights, caches, context)


def _random(slots: int) -> torch.Tensor:
    return empty_huge((slots, HEADS, HEAD_DIM), torch.bfloat16).normal_()


if __name__ == "__main__":
    raise SystemExit(main())
