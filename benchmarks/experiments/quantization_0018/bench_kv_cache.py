"""The gain and cost of --kv-cache-dtype int8 on a CPU: perplexity of real weights, decode steps at long contexts.

    python -m benchmarks.experiments.quantization_0018.bench_kv_cache --models DIR --text FILE --shape llama-135m

Perplexity is that of the end of a text, requested from a server in each format. The shape has random weights, and its
cache is larger than the processor's caches.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

from benchmarks.experiments.quantization_0018.bench_quantization import PASSAGE_TOKENS, measure_perplexity, read_end
from benchmarks.model_shapes import PAGE_SIZE, SHAPES, load_shape, make_shape, plan_decode
from benchmarks.result_file import write_result
from kernels.cpu.capture import timed_kernels
from messages.errors import SluiceError
from messages.ring.steps import Batch
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.runner import Runner

WARM_UP_STEPS = 2
Times = dict[str, list[float]]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--dtype", default="float32", choices=("float32", "bfloat16"), help="of both formats (default: %(default)s)")
    add("--models", nargs="*", type=Path, default=[], help="directories of models whose perplexity is measured")
    add("--text", type=Path, help="the text, in UTF-8")
    add(
        "--end-bytes",
        type=int,
        default=89_281,
        help="bytes of its end to score (default: the part that the bundled model never saw)",
    )
    add("--passage-tokens", type=int, default=PASSAGE_TOKENS, help="scored in one request (default: %(default)s)")
    add("--shape", choices=SHAPES, help="the shape whose steps are timed, for contexts of any length")
    add("--layers", type=int, help="of the shape (default: its own)")
    add("--rows", type=int, nargs="+", default=[1, 8], help="of a step (default: 1 8)")
    add("--contexts", type=int, nargs="+", default=[2048, 4096], help="tokens of each row (default: 2048 4096)")
    add("--cpu-threads", type=int, default=0, help="of the steps; 0: one for each core (default)")
    add("--rounds", type=int, default=15, help="steps of each kind (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if a server cannot be measured."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.models and options.text is None:
        parser.error("--models needs --text")
    formats = {
        options.dtype: ["--dtype", options.dtype],
        "int8": ["--dtype", options.dtype, "--kv-cache-dtype", "int8"],
    }
    try:
        flags = ["--log-level", "warning"]
        perplexities = [
            line
            for model in options.models
            for line in measure_perplexity(model, read_end(options), flags, formats, options.passage_tokens)
        ]
        speed = measure_steps(options, formats) if options.shape else None
    except SluiceError as error:
        print(f"bench_kv_cache: {error}", file=sys.stderr)
        return 1
    if options.json:
        result = {"dtype": options.dtype, "perplexity": perplexities, "speed": speed}
        write_result(options.json, "kv_cache", result)
    return 0


def measure_steps(options: argparse.Namespace, formats: dict[str, list[str]]) -> dict:
    """Returns a line for each number of rows and context, with the medians of each format."""
    longest, max_rows = max(options.contexts), max(options.rows)
    shape = make_shape(options.shape, options.layers) | {"max_position_embeddings": longest + PAGE_SIZE}
    num_pages = max_rows * (longest // PAGE_SIZE + 1)
    own = [
        "--device",
        "cpu",
        "--cpu-threads",
        str(options.cpu_threads),
        "--block-size",
        str(PAGE_SIZE),
        "--num-pages",
        str(num_pages),
    ]
    runners = {name: load_shape(shape, [*own, *flags]) for name, flags in formats.items()}
    cache_mib = {name: fill_cache(runner) / 2**20 for name, runner in runners.items()}
    print(", ".join(f"{name}: a cache of {size:,.0f} MiB" for name, size in cache_mib.items()))
    lines: list[dict] = []
    for num_rows, context in [(rows, tokens) for rows in options.rows for tokens in options.contexts]:
        batch = plan_decode(num_rows, context)
        times: dict[str, Times] = {name: new_times() for name in formats}
        for round_index in range(WARM_UP_STEPS + options.rounds):
            for name, runner in runners.items():
                run_step(runner, batch, times[name])
                if round_index < WARM_UP_STEPS:
                    times[name] = new_times()
        medians = {name: {key: statistics.median(values) for key, values in own.items()} for name, own in times.items()}
        lines.append({"rows": num_rows, "context": context, "median": medians, "rounds": times})
        figures = ", ".join(
            f"{name} {own['step_ms']:,.1f} ({own['attention_ms']:,.1f}; {own['cpu_ms']:,.1f})"
            for name, own in medians.items()
        )
        print(f"{num_rows} rows of {context}: {figures} ms a step (its attention; CPU)", flush=True)
    threads = torch.get_num_threads()
    return {
        "shape": options.shape,
        "layers": options.layers,
        "threads": threads,
        "cache_mib": cache_mib,
        "steps": lines,
    }


def fill_cache(runner: Runner) -> int:
    """Writes random numbers to all of the cache, whose memory would else be one page of zeros; returns its bytes."""
    assert isinstance(runner.forward_passes, CpuForwardPasses)
    tensors = runner.forward_passes.cache.tensors
    for tensor in tensors:
        if tensor.dtype == torch.int8:
            tensor.random_(-127, 128)
        else:
            tensor.uniform_(0.0, 0.01)
    return sum(tensor.nbytes for tensor in tensors)


def new_times() -> Times:
    return {"step_ms": [], "attention_ms": [], "cpu_ms": []}


def run_step(runner: Runner, batch: Batch, times: Times) -> None:
    """Runs it and appends what it took."""
    attention_ns: list[int] = []

    def record(name: str, began_ns: int, ended_ns: int) -> None:
        if name == "paged_decode":
            attention_ns.append(ended_ns - began_ns)

    with timed_kernels(record):
        begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
        runner.run(batch)
        times["step_ms"].append((time.perf_counter() - begin_s) * 1e3)
        times["cpu_ms"].append((time.thread_time() - begin_cpu_s) * 1e3)
    times["attention_ms"].append(sum(attention_ns) / 1e6)


if __name__ == "__main__":
    raise SystemExit(main())
