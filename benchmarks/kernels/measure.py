"""Interleaved timing of several forms of one operation, and the machine's limits."""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.result_file import write_result
from kernels.cpu.library import find_kernel, load_kernels

LEAST_SAMPLE_S = 0.005
READ_BYTES, PRODUCT_SIZE = 256 << 20, 1536

Row = dict[str, str | float]


def start(about: str | None) -> argparse.Namespace:
    """Reads the flags that all share, sets the threads and loads the C kernels."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=9, help="samples of each form, interleaved (default: 9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    isa = load_kernels(lambda text, fraction: print(text, file=sys.stderr))
    print(f"C kernels: {isa or 'none'}; {options.threads} threads; medians of {options.rounds} interleaved rounds")
    return options


def median_ms(forms: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Returns the median time of each form; they take turns, so that a machine that slows down slows all."""
    repeats: dict[str, int] = {}
    for name, form in forms.items():
        form()
        repeats[name] = max(1, round(LEAST_SAMPLE_S / max(1e-6, _time_s(form, 1))))
    samples: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(rounds):
        for name, form in forms.items():
            samples[name].append(_time_s(form, repeats[name]) / repeats[name] * 1e3)
    return {name: statistics.median(times) for name, times in samples.items()}


def read_bandwidth(rounds: int) -> float:
    """Returns the GB/s at which torch sums up memory that no cache of a core holds."""
    values = torch.ones(READ_BYTES // 4)
    return values.nbytes / median_ms({"read": values.sum}, rounds)["read"] / 1e6


def product_rate(rounds: int) -> float:
    """Returns the GFLOP/s of a square bfloat16 product."""
    a, b = torch.randn(2, PRODUCT_SIZE, PRODUCT_SIZE).bfloat16()
    return 2 * PRODUCT_SIZE**3 / median_ms({"product": lambda: a @ b}, rounds)["product"] / 1e6


def forms_of(
    name: str, launcher: Callable[[], object], reference: Callable[[], object]
) -> dict[str, Callable[[], object]]:
    """Returns what is compared: torch, and the C kernel where there is one."""
    forms = {"torch": reference}
    if find_kernel(name, torch.empty(0, dtype=torch.bfloat16)) is not None:
        forms["C"] = launcher
    return forms


def finish(options: argparse.Namespace, name: str, rows: Sequence[Row], limits: Mapping[str, float]) -> None:
    """Prints the table and writes the result file."""
    heads = list(rows[0])
    print("  ".join(f"{head:>24}" for head in heads))
    for row in rows:
        print(
            "  ".join(f"{row[head]:>24.3f}" if isinstance(row[head], float) else f"{row[head]:>24}" for head in heads)
        )
    print(", ".join(f"{what}: {value:.1f}" for what, value in limits.items()))
    if options.json:
        write_result(options.json, name, {"threads": options.threads, "limits": limits, "rows": rows})


def _time_s(form: Callable[[], object], repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        form()
    return time.perf_counter() - begin
