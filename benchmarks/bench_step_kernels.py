"""The time of each C kernel in one step on a CPU, compared with the step's floor on this machine.

    python -m benchmarks.bench_step_kernels [--shape gpt2-124m] [--format bfloat16] [--rounds 20] [--json FILE] [FLAGS]

Steps run in this process, without a server; FLAGS are server flags. Kinds of steps take turns, and results are medians.
The floor is the time to read the weights, K and V once or, in bfloat16, to compute the products, whichever is longer,
at the rates of this machine.
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from benchmarks.kernels.measure import product_rate, read_bandwidth
from benchmarks.model_shapes import (
    PAGE_SIZE,
    SHAPES,
    attentions,
    load_shape,
    plan_decode,
    read_shape,
    step_bytes,
    weight_bytes,
    with_states,
    with_window_pages,
)
from benchmarks.result_file import write_result
from kernels.cpu.capture import timed_kernels
from messages.columns import pack_float32, pack_int32, pack_int64
from messages.errors import SluiceError
from messages.ring.steps import Batch
from scheduler_proc.computing.model.description import ModelDescription

LIMIT_ROUNDS = 5
OUTSIDE = "outside of C kernels"
FORMATS = {"bfloat16": [], "int8": ["--quantization", "int8"], "int4": ["--quantization", "int4"]}
READ, PRODUCT = "read GB/s", "product GFLOP/s"


@dataclass(frozen=True)
class Kind:
    """A step of `num_rows` rows that have `context` tokens in the cache and get `num_tokens` more each."""

    num_rows: int
    num_tokens: int
    context: int

    @property
    def about(self) -> str:
        if self.num_tokens > 1:
            return f"a prompt's {self.num_tokens} tokens behind {self.context}"
        return f"{self.num_rows} decode rows of {self.context} tokens"

    @property
    def num_pages(self) -> int:
        return self.num_rows * -(-(self.context + self.num_tokens) // PAGE_SIZE)

    def plan(self) -> Batch:
        """Returns the step; its rows are greedy."""
        batch = replace(plan_decode(self.num_rows, self.context), temperatures=pack_float32([0.0] * self.num_rows))
        if self.num_tokens == 1:
            return batch
        places = range(self.context, self.context + self.num_tokens)
        return replace(
            batch,
            num_decode_rows=0,
            query_lens=pack_int32([self.num_tokens]),
            token_ids=pack_int32(range(self.num_tokens)),
            positions=pack_int32(places),
            slots=pack_int64(places),
            page_tables=pack_int32(range(self.num_pages)),
            sample_tokens=pack_int32([self.num_tokens - 1]),
            num_pages_per_row=self.num_pages,
        )

    def least_ms(self, shape: dict[str, object], weight_format: str, limits: dict[str, float]) -> float:
        num_keys = self.context + self.num_tokens
        read_ms = step_bytes(shape, self.num_rows, num_keys, weight_format) / limits[READ] / 1e6
        if weight_format != "bfloat16":
            return read_ms
        return max(read_ms, self._num_flop(read_shape(shape, num_keys)) / limits[PRODUCT] / 1e6)

    def _num_flop(self, model: ModelDescription) -> float:
        """Returns the operations of all linear layers, the head's for one token a row, and of causal attention."""
        num_all = self.num_rows * self.num_tokens
        head = model.vocab_size * model.hidden_size
        num_keys = self.context + (self.num_tokens + 1) / 2
        attention = 2 * sum(attention.out_size for attention in attentions(model)) * num_keys
        return 2 * (num_all * (weight_bytes(model, 1) - head + attention) + self.num_rows * head)


KINDS = (Kind(1, 1, 96), Kind(8, 1, 800), Kind(32, 1, 192), Kind(1, 512, 0), Kind(1, 512, 400))


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 if the model cannot be run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--shape", choices=SHAPES, default="gpt2-124m", help="default: %(default)s")
    parser.add_argument("--format", choices=FORMATS, default="bfloat16", help="of weights (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options, flags = parser.parse_known_args(arguments)
    try:
        results = measure(SHAPES[options.shape], options.format, options.rounds, flags)
    except SluiceError as error:
        print(f"bench_step_kernels: {error}", file=sys.stderr)
        return 1
    for line in results["steps"]:
        print(f"{line['about']}: {line['ms']:.2f} ms, at least {line['least_ms']:.2f}")
        for name, ms in line["kernels_ms"].items():
            print(f"    {name:24} {ms:8.3f}")
    if options.json:
        settings = {"shape": options.shape, "format": options.format, "flags": flags}
        write_result(options.json, "step_kernels", {**settings, **results})
    return 0


def measure(shape: dict[str, object], weight_format: str, rounds: int, flags: list[str]) -> dict:
    """Returns the machine's limits, and for each kind of step its time and its kernels', the longest first."""
    num_pages = max(kind.num_pages for kind in KINDS)
    context = max(kind.context + kind.num_tokens for kind in KINDS)
    own = ["--device", "cpu", "--dtype", "bfloat16", "--block-size", str(PAGE_SIZE), "--num-pages", str(num_pages)]
    own += ["--max-num-seqs", str(max(kind.num_rows for kind in KINDS)), "--max-model-len", str(context)]
    runner = load_shape(shape, [*own, *FORMATS[weight_format], *flags])
    limits = {READ: read_bandwidth(LIMIT_ROUNDS), PRODUCT: product_rate(LIMIT_ROUNDS)}
    times: dict[Kind, dict[str, list[float]]] = {kind: defaultdict(list) for kind in KINDS}
    for round_index in range(-2, rounds):  # the first two capture, and warm up
        for kind in KINDS:
            step = _time_step(runner.run, with_states(with_window_pages(kind.plan(), runner.windows), runner.states))
            for name, ms in step.items() if round_index >= 0 else ():
                times[kind][name].append(ms)
    least_ms = {kind: kind.least_ms(shape, weight_format, limits) for kind in KINDS}
    return {"limits": limits, "steps": [_line(kind, times[kind], least_ms[kind]) for kind in KINDS]}


def _time_step(run: Callable[[Batch], object], batch: Batch) -> dict[str, float]:
    kernels: dict[str, float] = defaultdict(float)

    def record(name: str, began_ns: int, ended_ns: int) -> None:
        kernels[name] += (ended_ns - began_ns) / 1e6

    with timed_kernels(record):
        begin_s = time.perf_counter()
        run(batch)
        ms = (time.perf_counter() - begin_s) * 1e3
    return {**kernels, OUTSIDE: ms - sum(kernels.values()), "": ms}


def _line(kind: Kind, times: dict[str, list[float]], least_ms: float) -> dict:
    medians = {name: statistics.median(values) for name, values in times.items()}
    step_ms = medians.pop("")
    return {
        "about": kind.about,
        "ms": step_ms,
        "least_ms": least_ms,
        "kernels_ms": dict(sorted(medians.items(), key=lambda item: -item[1])),
    }


if __name__ == "__main__":
    raise SystemExit(main())
