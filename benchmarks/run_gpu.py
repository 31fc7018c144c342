"""Runs every benchmark of a GPU and writes the results and the page made of them: `make bench-gpu`.

    python -m benchmarks.run_gpu [--shapes NAME ...] [--only PART ...] [--skip-peers]
    python -m benchmarks.run_gpu --device cpu --quick --results DIR     (shows that it runs; no number is worth keeping)

A part that fails is named at the end and stops none of the others. Commit first, so that the results carry a commit.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import performance_page
from benchmarks.result_file import ROOT

RESULTS = Path("benchmarks/results")
SHAPES = ("gpt2-124m", "qwen3-0.6b", "llama-3-8b", "qwen3-14b")
VARIANTS: dict[str, tuple[str, ...]] = {
    "": (),
    "_eager": ("--enforce-eager",),
    "_no_overlap": ("--no-overlap",),
}
SHARED_PREFIX = ("--shared-prefix", "400")
SHARED_VARIANTS: dict[str, tuple[str, ...]] = {
    "_shared_prefix": SHARED_PREFIX,
    "_shared_prefix_read_by_each": (*SHARED_PREFIX, "--no-shared-prefix-attention"),
}
PART_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Part:
    """One process; its result is `gpu_<name>.json`."""

    name: str
    module: str
    flags: tuple[str, ...]
    quick: tuple[str, ...] = ("--quick",)


QUICK_OFFLINE = ("--num-sequences", "2", "--max-tokens", "16", "--shared-prefix", "8")


HOST_ONLY = ("bench_quantized_linear",)
"""Benchmarks of operations that have no form on a GPU."""


def list_parts(shapes: list[str], has_peers: bool) -> Iterator[Part]:
    """Yields the device's limits, then kernels, the planning of steps, steps, the offline benchmark and peers."""
    files = sorted(path.stem for path in (ROOT / "benchmarks" / "kernels").glob("bench_*.py"))
    for name in sorted(set(files) - set(HOST_ONLY), key=lambda name: (name != "bench_limits", name)):
        yield Part(name.removeprefix("bench_"), f"kernels.{name}", ())
    yield Part("decode_plan", "bench_decode_plan", ())
    for shape in shapes:
        yield Part(f"step_{shape}", "bench_step", ("--shape", shape))
        yield Part(f"step_{shape}_eager", "bench_step", ("--shape", shape, "--enforce-eager"))
    for shape in shapes:
        for suffix, flags in (VARIANTS | SHARED_VARIANTS).items():
            yield Part(f"offline_{shape}{suffix}", "bench_offline", ("--shape", shape, *flags), QUICK_OFFLINE)
    for shape in shapes if has_peers else []:
        yield Part(f"transformers_{shape}", "bench_transformers", ("--shape", shape))


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 where a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cuda")
    add("--quick", action="store_true", help="the smallest case of each part")
    add("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="default: all")
    add("--only", nargs="+", metavar="PART", help="parts whose names begin so (default: all)")
    add("--skip-peers", action="store_true", help="without transformers")
    add("--results", type=Path, default=RESULTS, metavar="DIR", help="default: %(default)s, and the page is made anew")
    options = parser.parse_args(arguments)
    if options.device == "cpu" and options.results == RESULTS:
        parser.error("--device cpu: give a directory with --results, for what a GPU does is kept in the default one")
    failed: list[str] = []
    for part in list_parts(options.shapes, not options.skip_peers):
        if options.only and not part.name.startswith(tuple(options.only)):
            continue
        result = options.results / f"gpu_{part.name}.json"
        flags = ["--device", options.device, *part.flags, *(part.quick if options.quick else ())]
        command = [sys.executable, "-m", f"benchmarks.{part.module}", *flags, "--json", str(result)]
        print(f"\n=== {part.name}", flush=True)
        if not run(command):
            failed.append(part.name)
    if options.results == RESULTS:
        performance_page.main()
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run(command: list[str]) -> bool:
    try:
        return subprocess.run(command, cwd=ROOT, check=False, timeout=PART_TIMEOUT_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


if __name__ == "__main__":
    raise SystemExit(main())
