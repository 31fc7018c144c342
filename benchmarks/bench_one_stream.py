"""One stream's share of the memory's speed: each token reads all weights, K and V once.

    python -m benchmarks.bench_one_stream --json FILE

One server per format answers one request at a time. The time per token is the time difference between long and short
answers, divided by the additional tokens. Probes before and after each measurement take the fastest of three ways to
read memory. The result uses the median probe, because the memory's speed changes with the load of other machines.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from benchmarks.kernels.measure import median_ms, read_forms
from benchmarks.load.batch_client import Server, seconds_of
from benchmarks.load.workloads import PlannedRequest
from benchmarks.model_shapes import SHAPES, WEIGHT_BITS, kv_bytes, read_shape, served_shape, weight_bytes
from benchmarks.result_file import write_result
from benchmarks.server_process import started_server
from kernels.cpu.library import load_kernels
from messages.errors import SluiceError
from scheduler_proc.computing.backends.cpu.cores import auto_dtype
from scheduler_proc.computing.placement import DTYPES

GOALS = {"float32": 0.92, "bfloat16": 0.92, "int8": 0.8, "int4": 0.8}
NUM_INPUT, NUM_FEW, NUM_MANY = 32, 8, 136
PROBE_ROUNDS = 5
REST_S = 1.0
START_TIMEOUT_S = 300.0


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if a server cannot be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="gpt2-124m", help="default: %(default)s")
    add("--tokenizer", type=Path, default=Path("../shared/tokenizers/gpt2"), help="a directory (default: %(default)s)")
    add("--formats", nargs="+", choices=WEIGHT_BITS, default=["float32", "int8", "int4"], help="default: %(default)s")
    add("--rounds", type=int, default=6, help="of each format, in turns (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    try:
        results = run(options)
    except SluiceError as error:
        print(f"bench_one_stream: {error}", file=sys.stderr)
        return 1
    for name, line in results["formats"].items():
        print(f"{name}: {line['tok_per_s']:.1f} tok/s, {line['gb_per_s']:.1f} GB/s, {line['share']:.0%}")
    print(f"of the memory's {results['read_gb_per_s']:.1f} GB/s")
    if options.json:
        write_result(options.json, "one_stream", results)
    return 0


def run(options: argparse.Namespace) -> dict:
    """Measures all formats in turns; raises `SluiceError`."""
    isa = load_kernels(lambda text, fraction: print(text, file=sys.stderr))
    shape = SHAPES[options.shape]
    with ExitStack() as stack:
        flags = stack.enter_context(served_shape(shape, options.tokenizer))
        servers = {
            name: Server(stack.enter_context(started_server([*flags, *format_flags(name)], START_TIMEOUT_S))[1])
            for name in options.formats
        }
        probe = make_probe()
        token_s: dict[str, list[float]] = {name: [] for name in servers}
        probes: dict[str, list[float]] = {name: [] for name in servers}
        for round_index in range(-1, options.rounds):  # the first is a warm-up
            for name, server in servers.items():
                time.sleep(REST_S)
                before = probe()
                seconds = measure_token_s(server, 2 * round_index + 2)
                after = probe()
                if round_index >= 0:
                    token_s[name].append(seconds)
                    probes[name] += [before, after]
    read_rate = statistics.median(rate for rates in probes.values() for rate in rates)
    found = {name: describe(shape, name, token_s[name], probes[name]) for name in servers}
    return {
        "shape": options.shape,
        "isa": isa,
        "threads": torch.get_num_threads(),
        "read_gb_per_s": read_rate,
        "formats": found,
    }


def format_flags(name: str) -> list[str]:
    more = ["--dtype", name] if name in DTYPES else ["--quantization", name]
    return [*more, "--log-level", "warning"]


def make_probe() -> Callable[[], float]:
    """Returns what measures the GB/s at which memory is read now."""
    num_bytes, forms = read_forms()
    return lambda: num_bytes / min(median_ms(forms, PROBE_ROUNDS).values()) / 1e6


def measure_token_s(server: Server, seed: int) -> float:
    """Returns the time of a token of a stream alone; prompts differ, so that nothing is cached."""
    few, many = (
        seconds_of(server, [PlannedRequest([100 + seed + index] * NUM_INPUT, num_output)], 1)
        for index, num_output in enumerate((NUM_FEW, NUM_MANY))
    )
    return (many - few) / (NUM_MANY - NUM_FEW)


def describe(shape: dict[str, object], name: str, token_s: list[float], probes: list[float]) -> dict:
    """Returns a format's line: the median of its rounds and that of its probes."""
    config = read_shape(shape, 1024)
    kv_itemsize = DTYPES.get(name, auto_dtype()).itemsize
    num_keys = NUM_INPUT + (NUM_FEW + NUM_MANY) // 2
    num_bytes = weight_bytes(config, 1) * WEIGHT_BITS[name] / 8 + num_keys * kv_bytes(config, kv_itemsize)
    seconds, read_rate = statistics.median(token_s), statistics.median(probes)
    return {
        "bytes_a_token": round(num_bytes),
        "tok_per_s": 1 / seconds,
        "gb_per_s": num_bytes / seconds / 1e9,
        "read_gb_per_s": read_rate,
        "share": num_bytes / seconds / 1e9 / read_rate,
        "goal": GOALS[name],
        "token_s": token_s,
        "probes_gb_per_s": probes,
    }


if __name__ == "__main__":
    raise SystemExit(main())
