"""HTTP load of several sizes on a server of a known shape with random weights.

    python -m benchmarks.bench_http --shape qwen3-0.6b [--concurrency 1 16 64] [--device cuda] [--json FILE] [FLAGS]

FLAGS are server flags. The script starts the server, applies the loads one after the other as bench_server does (random
prompts of 128 tokens, outputs of 128, no end token, drawn with top-k and top-p), and stops it. All loads together take
a minute. It fails if a Triton kernel was compiled during them: that stops all streams.
"""

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks import bench_server
from benchmarks.load.connection import Target
from benchmarks.load.report import format_report
from benchmarks.load.server_facts import get
from benchmarks.model_shapes import SHAPES, make_shape, served_shape
from benchmarks.result_file import ROOT, write_result
from benchmarks.server_process import server_with_scheduler
from messages.errors import SluiceError, UsageError

TOKENIZER = ROOT / "assets" / "shakespeare-gpt2"
COUNTED = "tools.counted_scheduler"
START_TIMEOUT_S = 120.0
TOKENS = "128"
LOAD_S = 60.0
"""The time of all loads together."""

MAX_REQUESTS = 1_000_000
TEMPERATURE = 0.6
FILTERS = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 20, "top_p": 0.95}
"""The generation configuration of Qwen3, which requests get by default."""


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
        late = run(options, flags)
    except SluiceError as error:
        print(f"bench_http: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    for kernel in late:
        print(f"bench_http: compiled under load: {kernel}", file=sys.stderr)
    return 1 if late else 0


def run(options: argparse.Namespace, flags: list[str]) -> list[str]:
    """Measures each load, writes the result after it; returns the kernels compiled meanwhile. Raises `SluiceError`."""
    loads: list[object] = []
    late: list[str] = []
    shape = make_shape(options.shape, 1 if options.quick else None)
    with served_shape(shape, options.tokenizer) as model_flags, ExitStack() as server:
        model_dir = Path(model_flags[model_flags.index("--model") + 1])
        (model_dir / "generation_config.json").write_text(json.dumps(FILTERS), encoding="utf-8")
        (notes := model_dir / "compiled.txt").touch()
        arguments = [*model_flags, "--device", options.device, *flags]
        started = server_with_scheduler(COUNTED, arguments, START_TIMEOUT_S, ["--notes", str(notes)])
        _, target = server.enter_context(started)
        num_at_load = len(notes.read_text(encoding="utf-8").splitlines())
        about = {"shape": options.shape, "device": options.device, "flags": flags, "degraded": find_degraded(target)}
        streams = [2] if options.quick else options.concurrency
        for concurrency in streams:
            asked = load_flags(concurrency, "8" if options.quick else TOKENS, LOAD_S / len(streams), options.quick)
            settings = bench_server.make_parser().parse_args(["--url", target.origin, *asked])
            report, _ = bench_server.run_load(settings)
            print(format_report(report), flush=True)
            loads.append({"settings": {"concurrency": concurrency, "shared_prefix": 0}, "report": report})
            late = notes.read_text(encoding="utf-8").splitlines()[num_at_load:]
            about |= {"compiled_at_load": num_at_load, "compiled_under_load": late}
            if options.json:
                write_result(options.json, "http", {**about, "loads": loads})
    return late


def find_degraded(target: Target) -> dict[str, str]:
    """Returns what each process lacks, by name; empty if none lacks anything."""
    processes = json.loads(get(target, "/health")[1]).get("processes", {})
    return {name: process["degraded"] for name, process in processes.items() if process.get("degraded")}


def load_flags(concurrency: int, tokens: str, seconds: float, is_quick: bool) -> list[str]:
    """Returns bench_server's flags for one load."""
    num_requests = str(2 * concurrency if is_quick else MAX_REQUESTS)
    limits = ["--num-requests", num_requests, "--max-seconds", str(seconds), "--temperature", str(TEMPERATURE)]
    return [
        "--concurrency",
        str(concurrency),
        *limits,
        "--input-tokens",
        tokens,
        "--output-tokens",
        tokens,
        "--ignore-eos",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
