"""The CPU engine through HTTP, beside the machine's limits, other flags of its own, and other servers.

    python -m benchmarks.bench_cpu --variant 'int8=--quantization int8'
    python -m benchmarks.bench_cpu --shape llama-135m --peer 'vLLM 0.32, bf16=http://127.0.0.1:8080/NAME-OF-ITS-MODEL'

Weights are random: they time the same. A peer must serve the same shape and the /v1/completions of OpenAI with token
ids as prompts and `ignore_eos`. Rounds of all servers take turns, with a pause in which the last one's threads come to
rest; each round has prompts of its own.
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path

import torch

from benchmarks.kernels.measure import product_rate, read_bandwidth
from benchmarks.load.batch_client import Server, seconds_of
from benchmarks.load.connection import Target, parse_url
from benchmarks.load.workloads import LengthRange, Lengths, PlannedRequest, random_prompts
from benchmarks.model_shapes import SHAPES
from benchmarks.result_file import write_result
from benchmarks.server_process import started_server
from messages.errors import SluiceError, UsageError
from scheduler_proc.computing.decoder_config import parameter_shapes
from scheduler_proc.computing.families.registry import find_family
from scheduler_proc.computing.hf_config import HfConfig

START_TIMEOUT_S = 600.0
LIMIT_ROUNDS = 5
REST_S = 1.0
"""Threads of a server that has just answered may still spin, and would take the next one's cores."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Workload:
    """`num_requests` prompts of `num_input` tokens, the first `num_shared` alike; `concurrency` run at a time."""

    about: str
    num_requests: int
    concurrency: int
    num_input: int
    num_output: int
    num_shared: int = 0
    unit: str = "output tok/s"
    goal: float = 1.0
    """How many times as fast as a peer this is to be."""

    def requests(self, vocab_size: int, seed: int) -> list[PlannedRequest]:
        lengths = Lengths(LengthRange(self.num_input, self.num_input), LengthRange(self.num_output, self.num_output))
        return list(islice(random_prompts(vocab_size, lengths, self.num_shared, seed), self.num_requests))

    def figure(self, seconds: float) -> float:
        """Returns what the time means, in `unit`."""
        if self.unit == "s":
            return seconds
        num_tokens = self.num_input if self.unit == "prompt tok/s" else self.num_output
        return self.num_requests * num_tokens / seconds


WORKLOADS = {
    "W1": Workload("one stream", 1, 1, 32, 128, goal=1.25),
    "W2": Workload("32 streams at once", 32, 32, 128, 128, goal=1.25),
    "W3": Workload("8 prompts at once", 8, 8, 900, 4, unit="prompt tok/s", goal=1.1),
    "W4": Workload("32 requests that share a prefix, 8 at a time", 32, 8, 800, 32, 768, unit="s", goal=1.4),
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="gpt2-124m", help="default: %(default)s")
    add("--tokenizer", type=Path, default=Path("../shared/tokenizers/gpt2"), help="a directory (default: %(default)s)")
    add("--dtype", default="auto", help="of the server (default: auto)")
    add("--cpu-threads", type=int, default=0, help="of the server; 0: as it chooses (default)")
    add("--max-num-batched-tokens", type=int, default=0, help="of the server; 0: as it chooses (default)")
    add("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="default: all")
    add("--rounds", type=int, default=5, help="of each workload on each server (default: 5)")
    about_seed = "of the prompts (default: from the clock, so that no server has an earlier run's in its prefix cache)"
    add("--seed", type=int, default=time.time_ns() // 1_000_000, help=about_seed)
    about_peer = "an OpenAI-compatible server that is measured in the same rounds, what it is, and its model's name"
    add("--peer", action="append", default=[], metavar="ABOUT=URL/MODEL", help=f"{about_peer}; may be repeated")
    about_variant = "one more server of ours with these flags besides; may be repeated"
    add("--variant", action="append", default=[], metavar="ABOUT=FLAGS", help=about_variant)
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 where a server cannot be measured, 2 on bad usage."""
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
    limits = measure_limits(shape)
    peers = [read_peer(text) for text in options.peer]
    variants = [read_pair(text, "--variant") for text in options.variant]
    with ExitStack() as stack:
        model_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-shape-")))
        write_model(model_dir, shape, options.tokenizer)
        flags = ["--model", str(model_dir), "--load-format", "dummy", "--dtype", options.dtype]
        flags += ["--cpu-threads", str(options.cpu_threads), "--log-level", "warning"]
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
    return {
        "shape": options.shape,
        "seed": options.seed,
        "peers": [name for name, _ in peers],
        "dtype": options.dtype,
        "cpu_threads": options.cpu_threads,
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


def measure(
    servers: dict[str, Server],
    names: Sequence[str],
    rounds: int,
    vocab_size: int,
    seed: int = 0,
    rest_s: float = REST_S,
) -> list[dict]:
    """Returns a line for each workload: the figures of each server in each round, and their medians.

    Who begins changes from round to round.
    """
    figures = {name: {server: [] for server in servers} for name in names}
    for round_index in range(-1, rounds):  # the first is a warm-up
        for index, name in enumerate(names):
            workload = WORKLOADS[name]
            turns = list(servers.items())
            for server_name, server in turns if round_index % 2 else reversed(turns):
                requests = workload.requests(vocab_size, seed + 1000 * (round_index + 1) + index)
                time.sleep(rest_s)
                seconds = seconds_of(server, requests, workload.concurrency)
                if round_index >= 0:
                    figures[name][server_name].append(workload.figure(seconds))
    return [
        {
            "name": name,
            "about": WORKLOADS[name].about,
            "tokens": f"{WORKLOADS[name].num_input} + {WORKLOADS[name].num_output}",
            "unit": WORKLOADS[name].unit,
            "goal": WORKLOADS[name].goal,
            "rounds": figures[name],
            "median": {server: statistics.median(values) for server, values in figures[name].items()},
        }
        for name in names
    ]


def measure_limits(shape: dict[str, object]) -> dict[str, float]:
    """Returns the machine's limits and what follows for one stream, whose every token reads all weights once."""
    hf_config = HfConfig(dict(shape))
    config = find_family(hf_config).read_config(hf_config, 1024)
    shapes = parameter_shapes(config)
    shapes.pop("position_embedding", None)
    if not config.has_tied_head:
        shapes.pop("embedding")
    weight_bytes = 2 * sum(prod(sizes) for sizes in shapes.values())
    bandwidth = read_bandwidth(LIMIT_ROUNDS)
    return {
        "threads": torch.get_num_threads(),
        "read_gb_per_s": bandwidth,
        "bfloat16_product_gflop_per_s": product_rate(LIMIT_ROUNDS),
        "weight_bytes_bfloat16": weight_bytes,
        "one_stream_tok_per_s_at_read_limit": bandwidth * 1e9 / weight_bytes,
    }


def write_model(model_dir: Path, shape: dict[str, object], tokenizer: Path) -> None:
    """Writes a directory that can be served without weights. Raises `UsageError` where there is no tokenizer."""
    (model_dir / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    if not (tokenizer / TOKENIZER_FILES[0]).is_file():
        raise UsageError(f"--tokenizer {tokenizer}: it has no {TOKENIZER_FILES[0]}")
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, model_dir / name)


if __name__ == "__main__":
    raise SystemExit(main())
