"""Runs every benchmark on this machine, then writes the result files and the performance pages: `make bench`.

    python -m benchmarks.run_all [--model DIR] [--peer ABOUT=URL/MODEL]

Nothing else should run meanwhile. Commit first: result files name the commit, and no page shows one of a dirty tree.
The comparison with other servers (`bench_cpu`) needs at least one --peer.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks import performance_page
from benchmarks.server_process import started_server
from kernels.cpu.library import load_kernels

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path("benchmarks/results")
BUNDLED_MODEL = "assets/shakespeare-gpt2"
START_TIMEOUT_S = 300.0
LONG_PROMPT_BUDGETS = ("128", "512", "8192")
PEER_SHAPES: dict[str, tuple[str, ...]] = {
    "gpt2-124m": ("--shape", "gpt2-124m"),
    "llama-135m": ("--shape", "llama-135m-16k", "--workloads", "W1", "W2", "W3", "W4", "W5", "W6"),
    "qwen3-0.6b": ("--shape", "qwen3-0.6b", "--max-model-len", "1024"),
}
LOADS: dict[str, tuple[str, ...]] = {
    "1_stream": ("--concurrency", "1", "--num-requests", "16", "--ignore-eos"),
    "16_streams": ("--concurrency", "16", "--num-requests", "96", "--ignore-eos"),
    "64_streams": ("--concurrency", "64", "--num-requests", "256", "--ignore-eos"),
    "shared_prefix": (
        "--concurrency",
        "16",
        "--num-requests",
        "96",
        "--shared-prefix",
        "200",
        "--input-tokens",
        "256",
        "--ignore-eos",
    ),
}
"""Loads of one server. Prompts take a quarter of the context, or 256 tokens if they share most of them."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=BUNDLED_MODEL, help="the model to serve (default: the bundled one)")
    parser.add_argument("--peer", action="append", default=[], metavar="ABOUT=URL/MODEL", help="see bench_cpu")
    options = parser.parse_args()
    model = options.model
    run("schedule", "bench_schedule")
    run("wire", "bench_wire", "--tokenizer", model)
    isa = widest_vectors()
    for weight_format in ("bfloat16", "int8"):
        run(f"step_kernels#{weight_format}", "bench_step_kernels", "--format", weight_format)
    formats = ("float32", "int8", "int4") if isa == "avx2" else ("float32", "bfloat16", "int8", "int4")
    run(f"one_stream#{isa}", "bench_one_stream", "--tokenizer", model, "--formats", *formats)
    run("footprint", "bench_footprint", "--model", model)
    run("ring_cost", "bench_ring_cost", "--model", model)
    run("recovery#processes", "bench_recovery", "--model", model)
    engines = ("--processes", "scheduler", "scheduler-2", "--", "--data-parallel", "2")
    run("recovery#engines", "bench_recovery", "--model", model, *engines)
    run("mixed_steps", "bench_mixed_steps", "--model", model, "--budgets", *LONG_PROMPT_BUDGETS)
    with started_server(["--model", model], START_TIMEOUT_S) as (_, target):
        for name, flags in LOADS.items():
            run(f"server#{name}", "bench_server", "--url", f"http://{target.host}:{target.port}", *flags)
    peers = [word for peer in options.peer for word in ("--peer", peer)]
    for name, flags in PEER_SHAPES.items() if peers else ():
        run(f"cpu#{isa}_{name}", "bench_cpu", "--tokenizer", model, *flags, *peers)
    return performance_page.main()


def run(name: str, module: str, *flags: str) -> None:
    """Runs one benchmark in its own process. `name` is the result file, or FILE#RUN for one of its runs."""
    file, _, run_name = name.partition("#")
    result = f"{RESULTS / file}.json" + (f"#{run_name}" if run_name else "")
    sys.stdout.write(f"\n=== {name}\n")
    sys.stdout.flush()
    command = [sys.executable, "-m", f"benchmarks.{module}", "--json", result, *flags]
    subprocess.run(command, cwd=ROOT, check=True)


def widest_vectors() -> str:
    """Returns the name of the C kernels' instruction set on this processor, as result files name it."""
    isa = load_kernels(lambda text, fraction: print(text, file=sys.stderr))
    return isa or "torch"


if __name__ == "__main__":
    raise SystemExit(main())
