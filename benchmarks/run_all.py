"""Runs every benchmark on this machine and writes the results and the page made of them: `make bench`.

    python -m benchmarks.run_all [--model DIR]

Nothing else should run meanwhile. Commit first, so that the results carry a commit.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks import performance_page
from benchmarks.server_process import started_server

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path("benchmarks/results")
BUNDLED_MODEL = "assets/shakespeare-gpt2"
START_TIMEOUT_S = 300.0
LONG_PROMPT_BUDGETS = ("128", "512", "8192")
LOADS: dict[str, tuple[str, ...]] = {
    "server_1_stream": ("--concurrency", "1", "--num-requests", "16", "--ignore-eos"),
    "server_16_streams": ("--concurrency", "16", "--num-requests", "96", "--ignore-eos"),
    "server_64_streams": ("--concurrency", "64", "--num-requests", "256", "--ignore-eos"),
    "server_shared_prefix": (
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
"""Each on one server; prompts of a quarter of the context, or of 256 tokens where most of it is shared."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=BUNDLED_MODEL, help="the model that is served (default: the bundled one)")
    model = parser.parse_args().model
    run("schedule", "bench_schedule")
    run("wire", "bench_wire", "--tokenizer", model)
    run("step_kernels", "bench_step_kernels")
    run("footprint", "bench_footprint", "--model", model)
    run("ring_cost", "bench_ring_cost", "--model", model)
    run("recovery", "bench_recovery", "--model", model)
    engines = ("--processes", "scheduler", "scheduler-2", "--", "--data-parallel", "2")
    run("engine_death", "bench_recovery", "--model", model, *engines)
    run("remote_cost", "bench_remote_cost")
    run("restart", "bench_restart")
    run("restart_gpt2-124m", "bench_restart", "--shape", "gpt2-124m")
    run("populate", "bench_populate")
    run("mixed_steps", "bench_mixed_steps", "--model", model, "--budgets", *LONG_PROMPT_BUDGETS)
    with started_server(["--model", model], START_TIMEOUT_S) as (_, target):
        for name, flags in LOADS.items():
            run(name, "bench_server", "--url", f"http://{target.host}:{target.port}", *flags)
    return performance_page.main()


def run(name: str, module: str, *flags: str) -> None:
    """Runs one benchmark as its own process; the result is `benchmarks/results/<name>.json`."""
    sys.stdout.write(f"\n=== {name}\n")
    sys.stdout.flush()
    command = [sys.executable, "-m", f"benchmarks.{module}", "--json", str(RESULTS / f"{name}.json"), *flags]
    subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    raise SystemExit(main())
