"""The CPU engine over HTTP, compared with the machine's limits, other flags and other servers.

    python -m benchmarks.bench_cpu --variant 'int8=--quantization int8'
    python -m benchmarks.bench_cpu --shape llama-135m --peer 'vLLM 0.32, bf16=http://127.0.0.1:8080/NAME-OF-ITS-MODEL'

    python -m benchmarks.bench_cpu --shape qwen3-0.6b --gguf FILE --peer 'llama.cpp=http://127.0.0.1:8081/FILE'

Weights are random, which does not change the timing, or those of a GGUF file of the shape
(benchmarks.experiments.gguf_0101.make_gguf). A peer must serve the same shape, and OpenAI's /v1/completions with token
ids as prompts and `ignore_eos`. The servers take turns in each round. A pause between turns lets the threads of the
previous server come to rest. Each round has its own prompts.
"""

import argparse
import json
import os
import shlex
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import torch

from benchmarks.kernels.measure import product_rate, read_bandwidth
from benchmarks.load.batch_client import LONG_WORKLOADS, WORKLOADS, Server, measure
from benchmarks.load.connection import Target, parse_url
from benchmarks.load.workloads import PlannedRequest
from benchmarks.model_shapes import SHAPES, read_shape, served_shape, weight_bytes
from benchmarks.result_file import write_result
from benchmarks.server_process import started_server
from kernels.cpu.library import load_kernels
from messages.errors import SluiceError, UsageError
from scheduler_proc.computing.backends.cpu.cores import auto_dtype
from scheduler_proc.computing.placement import DTYPES

START_TIMEOUT_S = 600.0
LIMIT_ROUNDS = 9

Limits = dict[str, float]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="gpt2-124m", help="default: %(default)s")
    add("--gguf", type=Path, help="a file of the shape, served in place of random weights")
    add("--tokenizer", type=Path, default=Path("../shared/tokenizers/gpt2"), help="a directory (default: %(default)s)")
    add("--dtype", default="auto", help="of the server (default: auto)")
    add("--cpu-threads", type=int, default=0, help="server flag; 0: automatic (default)")
    add("--max-model-len", type=int, default=0, help="server flag; 0: the model's own (default)")
    add("--max-num-batched-tokens", type=int, default=0, help="server flag; 0: automatic (default)")
    about_workloads = "default: all that a context of 1,024 tokens takes"
    names = [*WORKLOADS, *LONG_WORKLOADS]
    add("--workloads", nargs="+", choices=names, default=list(WORKLOADS), help=about_workloads)
    add("--rounds", type=int, default=5, help="of each workload on each server (default: 5)")
    about_seed = "of the prompts (default: from the clock, so that no server has an earlier run's in its prefix cache)"
    add("--seed", type=int, default=time.time_ns() // 1_000_000, help=about_seed)
    about_peer = "an OpenAI-compatible server that is measured in the same rounds, what it is, and its model's name"
    add("--peer", action="append", default=[], metavar="ABOUT=URL/MODEL", help=f"{about_peer}; may be repeated")
    about_variant = "one more server of ours with these flags besides; may be repeated"
    add("--variant", action="append", default=[], metavar="ABOUT=FLAGS", help=about_variant)
    add("--no-limits", action="store_true", help="leave out the machine's limits")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 if a server cannot be measured, 2 on bad usage."""
    options = make_parser().parse_args(arguments)
    try:
        results = run(options)
    except SluiceError as error:
        print(f"bench_cpu: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    for line in results["workloads"]:
        figures = ", ".join(f"{name} {line['median'][name]:,.1f}" for name in line["median"])
        print(f"{line['name']} {line['about']}: {figures} {line['unit']}")
    print(json.dumps(results["limits"]))
    if options.json:
        write_result(options.json, "cpu", results)
    return 0


def run(options: argparse.Namespace) -> dict:
    """Measures everything; raises `SluiceError`."""
    shape = SHAPES[options.shape]
    isa = load_kernels(lambda text, fraction: print(text, file=sys.stderr))
    dtype = DTYPES.get(options.dtype) or auto_dtype()
    first_limits = {} if options.no_limits else measure_limits(dtype)
    peers = [read_peer(text) for text in options.peer]
    variants = [read_pair(text, "--variant") for text in options.variant]
    with ExitStack() as stack:
        if options.gguf:
            flags = ["--model", str(options.gguf)]
        else:
            flags = stack.enter_context(served_shape(shape, options.tokenizer))
        # What random weights write repeats itself, so drafts would gain what they do not gain with other text.
        flags += ["--dtype", options.dtype, "--speculative", "none"]
        flags += ["--cpu-threads", str(options.cpu_threads), "--log-level", "warning"]
        if options.max_model_len:
            flags += ["--max-model-len", str(options.max_model_len)]
        if options.max_num_batched_tokens:
            flags += ["--max-num-batched-tokens", str(options.max_num_batched_tokens)]
        servers: dict[str, Server] = {}
        first_token_s: dict[str, float] = {}
        for name, more_flags in [("sluice", ""), *variants]:
            begin_s = time.perf_counter()
            _, target = stack.enter_context(started_server([*flags, *shlex.split(more_flags)], START_TIMEOUT_S))
            servers[name] = Server(target)
            servers[name].answer(PlannedRequest([100] * 32, 1))
            first_token_s[name] = time.perf_counter() - begin_s
        servers.update(peers)
        lines = measure(servers, options.workloads, options.rounds, int(str(shape["vocab_size"])), options.seed)
    # Twice, because memory's speed changes with what other machines do.
    model = read_shape(shape, 1024)
    num_bytes = weight_bytes(model, dtype.itemsize, 1)
    if options.gguf:
        num_bytes = round(options.gguf.stat().st_size * weight_bytes(model, 1, 1) / weight_bytes(model, 1))
    limits = {} if options.no_limits else join_limits(num_bytes, first_limits, measure_limits(dtype))
    return {
        "shape": options.shape,
        "gguf": options.gguf.name if options.gguf else "",
        "seed": options.seed,
        "peers": [name for name, _ in peers],
        "dtype": name_of(dtype),
        "isa": isa,
        "cpu_threads": options.cpu_threads,
        "max_model_len": options.max_model_len,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "start_to_first_token_s": first_token_s,
        "limits": limits,
        "workloads": lines,
    }


def read_pair(text: str, flag: str) -> tuple[str, str]:
    """Returns the two sides of ABOUT=REST. Raises `UsageError`."""
    about, separator, rest = text.partition("=")
    if not (about and separator and rest):
        raise UsageError(f"{flag} {text}: it must be ABOUT=..., with both sides")
    return about, rest


def read_peer(text: str) -> tuple[str, Server]:
    """Returns what a peer is and how it is asked. Raises `UsageError`."""
    about, address = read_pair(text, "--peer")
    url, _, model = address.rpartition("/")
    if not model or not url.startswith("http"):
        raise UsageError(f"--peer {text}: the address must be http://HOST:PORT/NAME-OF-ITS-MODEL")
    api_key = os.environ.get("PEER_API_KEY", "")
    return about, Server(Target(*parse_url(url), api_key=api_key, timeout_s=600.0), model)


def measure_limits(dtype: torch.dtype) -> Limits:
    """Returns what the machine can do at best: what is read and multiplied in a second."""
    return {
        "read_gb_per_s": read_bandwidth(LIMIT_ROUNDS),
        f"{name_of(dtype)}_product_gflop_per_s": product_rate(LIMIT_ROUNDS, dtype=dtype),
    }


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def join_limits(num_bytes: int, *measured: Limits) -> Limits:
    """Returns the best of them, and what follows for one stream, whose every token reads all weights once."""
    best = {name: max(limits[name] for limits in measured) for name in measured[0]}
    return {
        "threads": torch.get_num_threads(),
        "rounds": LIMIT_ROUNDS * len(measured),
        **best,
        "weight_bytes": num_bytes,
        "one_stream_tok_per_s_at_read_limit": best["read_gb_per_s"] * 1e9 / num_bytes,
    }


if __name__ == "__main__":
    raise SystemExit(main())
