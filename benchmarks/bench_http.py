"""HTTP load of several sizes on a server of a known shape with random weights.

    python -m benchmarks.bench_http --shape qwen3-0.6b [--concurrency 1 16 64] [--device cuda] [--json FILE] [FLAGS]

FLAGS are server flags. The script starts the server, applies the loads one after the other as bench_server does (random
prompts of 128 tokens, outputs of 128, no end token), and stops it.
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks import bench_server
from benchmarks.load.connection import Target
from benchmarks.load.report import format_report
from benchmarks.load.server_facts import get
from benchmarks.model_shapes import SHAPES, make_shape, served_shape
from benchmarks.result_file import ROOT, write_result
from benchmarks.server_process import started_server
from messages.errors import SluiceError, UsageError

TOKENIZER = ROOT / "assets" / "shakespeare-gpt2"
START_TIMEOUT_S = 120.0
TOKENS = "128"
REQUESTS_A_STREAM = 4
MIN_REQUESTS = 8


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 if the server cannot be measured, 2 on bad usage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="qwen3-0.6b", help="default: %(default)s")
    add("--tokenizer", type=Path, default=TOKENIZER, metavar="DIR", help="default: the bundled model's")
    add("--concurrency", type=int, nargs="+", default=[1, 16, 64], help="streams at a time (default: 1 16 64)")
    add("--device", choices=("cpu", "cuda"), default="cuda")
    add("--quick", action="store_true", help="one layer, and two streams of a few tokens, as a smoke test")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options, flags = parser.parse_known_args(arguments)
    try:
        run(options, flags)
    except SluiceError as error:
        print(f"bench_http: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def run(options: argparse.Namespace, flags: list[str]) -> None:
    """Measures each load and writes the result after it. Raises `SluiceError`."""
    loads: list[object] = []
    shape = make_shape(options.shape, 1 if options.quick else None)
    with (
        served_shape(shape, options.tokenizer) as model_flags,
        started_server([*model_flags, "--device", options.device, *flags], START_TIMEOUT_S) as (_, target),
    ):
        about = {"shape": options.shape, "device": options.device, "flags": flags, "degraded": find_degraded(target)}
        for concurrency in [2] if options.quick else options.concurrency:
            asked = load_flags(concurrency, "8" if options.quick else TOKENS)
            settings = bench_server.make_parser().parse_args(["--url", target.origin, *asked])
            report, _ = bench_server.run_load(settings)
            print(format_report(report), flush=True)
            loads.append({"settings": {"concurrency": concurrency, "shared_prefix": 0}, "report": report})
            if options.json:
                write_result(options.json, "http", {**about, "loads": loads})


def find_degraded(target: Target) -> dict[str, str]:
    """Returns what each process lacks, by name; empty if none lacks anything."""
    processes = json.loads(get(target, "/health")[1]).get("processes", {})
    return {name: process["degraded"] for name, process in processes.items() if process.get("degraded")}


def load_flags(concurrency: int, tokens: str) -> list[str]:
    """Returns bench_server's flags for one load."""
    num_requests = str(max(MIN_REQUESTS, REQUESTS_A_STREAM * concurrency))
    lengths = ["--input-tokens", tokens, "--output-tokens", tokens, "--ignore-eos"]
    return ["--concurrency", str(concurrency), "--num-requests", num_requests, *lengths]


if __name__ == "__main__":
    raise SystemExit(main())
