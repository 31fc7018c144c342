"""Timing of several forms of one operation, interleaved, on a CPU or a CUDA device; and the device's limits."""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TypeVar

import torch

from benchmarks.result_file import write_result
from kernels.cpu.huge_pages import empty_huge
from kernels.cpu.library import find_kernel, load_kernels
from kernels.formats.plain import onednn_has_bfloat16
from kernels.gpu.triton_kernels import find_triton_kernel, load_triton_kernels
from kernels.operations.packed_linear import has_packed_kernel, pack, packed_linear

CPU = torch.device("cpu")
LEAST_SAMPLE_S = 0.005
CUDA_SAMPLES_A_ROUND = 5
CACHE_BYTES = 512 << 20
"""Bytes read between samples on a GPU: they evict the operands and give the host time to launch the next form.

Written ones would have to be put back into memory during the sample."""
READ_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}
PRODUCT_SIZE = {"cpu": 1536, "cuda": 8192}

Row = dict[str, str | float]
Form = Callable[[], object]
Case = TypeVar("Case")


@dataclass(frozen=True)
class Work:
    """The forms of one operation on one case, the bytes it must move and, if compute-bound, its operations."""

    forms: Mapping[str, Form]
    num_bytes: int
    num_operations: int = 0


Findings = tuple[list[Row], dict[str, float]]
"""A row for each case, and the device's limits by name and unit."""


@dataclass(frozen=True)
class Benchmark:
    """The benchmark of one operation: how to measure it, and on which devices it runs."""

    about: str
    measure: Callable[[argparse.Namespace], Findings]
    devices: Sequence[str] = ("cpu", "cuda")


def of_operation(
    about: str, cases: Mapping[str, Mapping[str, Case]], make: Callable[[Case, torch.device], Work]
) -> Benchmark:
    """Returns the benchmark that times every form of every case; `cases` maps a device to its cases by label."""
    return Benchmark(about, partial(_measure_cases, cases, make))


def _measure_cases(
    cases: Mapping[str, Mapping[str, Case]],
    make: Callable[[Case, torch.device], Work],
    options: argparse.Namespace,
) -> Findings:
    """With --quick, runs only the first case, once."""
    rows: list[Row] = []
    for label, case in list(cases[options.device.type].items())[: 1 if options.quick else None]:
        work = make(case, options.device)
        times = median_ms(work.forms, options.rounds, options.device)
        rate, amount = ("GFLOP/s", work.num_operations) if work.num_operations else ("GB/s", work.num_bytes)
        row: Row = {"case": label, "MB": work.num_bytes / 1e6}
        row |= {f"{form} ms": ms for form, ms in times.items()}
        row |= {f"{form} {rate}": amount / ms / 1e6 for form, ms in times.items()}
        rows.append(row)
    limits = {"copy GB/s": copy_bandwidth(options.rounds, options.device)}
    if any("GFLOP/s" in head for row in rows for head in row):
        limits["bfloat16 product GFLOP/s"] = product_rate(options.rounds, options.device)
    return rows, limits


def prepare(options: argparse.Namespace) -> None:
    """Sets the number of threads and loads the kernels of the device."""
    torch.set_num_threads(options.threads)
    if options.device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        load_triton_kernels(options.device.type)
        print(f"Triton kernels on {describe(options.device)}; medians of {options.rounds} interleaved rounds")
    else:
        isa = load_kernels(lambda text, fraction: print(text, file=sys.stderr))
        print(f"C kernels: {isa or 'none'}; {options.threads} threads; medians of {options.rounds} interleaved rounds")


def describe(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def forms_of(name: str, x: torch.Tensor, launcher: Form, others: Mapping[str, Form]) -> dict[str, Form]:
    """Returns the forms to compare: `others`, and the kernel that the launcher picks for tensors like `x`, if any."""
    if find_triton_kernel(name) is not None:
        return {**others, "Triton": launcher}
    return {**others, "C": launcher} if find_kernel(name, x.dtype) is not None else dict(others)


def median_ms(forms: Mapping[str, Form], rounds: int, device: torch.device = CPU) -> dict[str, float]:
    """Returns the median time of each form. Forms are interleaved, so a slow moment of the machine affects all."""
    return {name: statistics.median(times) for name, times in _samples_ms(forms, rounds, device).items()}


def least_ms(forms: Mapping[str, Form], rounds: int, device: torch.device = CPU) -> float:
    """Returns the time of the fastest sample of any form, as a limit."""
    return min(min(times) for times in _samples_ms(forms, rounds, device).values())


def read_bandwidth(rounds: int) -> float:
    """Returns the best GB/s at which memory in huge pages, larger than any core's cache, is read."""
    num_bytes, forms = read_forms()
    return num_bytes / least_ms(forms, rounds) / 1e6


def read_forms() -> tuple[int, dict[str, Form]]:
    """Returns several ways to read a buffer larger than the cores' caches once, and its size in bytes."""
    num_bytes, num_inputs = READ_BYTES["cpu"], 1024
    packed = empty_huge((num_bytes // 64 // num_inputs, num_inputs // 2, 32, 2), torch.bfloat16).fill_(0.01)
    x, values = torch.ones(1, num_inputs).bfloat16(), packed.view(torch.float32)
    forms: dict[str, Form] = {"sum": values.sum, "largest": values.max}
    if find_kernel("packed_linear", x.dtype) is not None:
        forms["linear"] = lambda: packed_linear(x, packed, None, num_bytes // 2 // num_inputs)
    return num_bytes, forms


def copy_bandwidth(rounds: int, device: torch.device) -> float:
    """Returns the median GB/s of a copy, counting bytes read and written."""
    source = torch.ones(READ_BYTES[device.type] // 4, device=device)
    target = torch.empty_like(source)
    copy = median_ms({"copy": lambda: target.copy_(source)}, rounds, device)["copy"]
    return 2 * source.nbytes / copy / 1e6


def product_rate(rounds: int, device: torch.device = CPU, dtype: torch.dtype = torch.bfloat16) -> float:
    """Returns the best GFLOP/s of a square product, by the device's library and by our own kernel.

    Without bfloat16 in oneDNN, torch's own product takes seconds and is skipped.
    """
    size = PRODUCT_SIZE[device.type]
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    forms: dict[str, Form] = {}
    if device.type != "cpu" or dtype != torch.bfloat16 or onednn_has_bfloat16() or not has_packed_kernel(b):
        forms["library"] = lambda: a @ b
    if has_packed_kernel(b):
        packed = pack(b)
        forms["own"] = lambda: packed_linear(a, packed, None, size)
    return 2 * size**3 / least_ms(forms, rounds, device) / 1e6


def finish(options: argparse.Namespace, name: str, rows: Sequence[Row], limits: Mapping[str, float]) -> None:
    """Prints the table and writes the result file."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    print("  ".join(f"{head:>24}" for head in heads))
    for row in rows:
        cells = [row.get(head, "") for head in heads]
        print("  ".join(f"{cell:>24.3f}" if isinstance(cell, float) else f"{cell:>24}" for cell in cells))
    measured = ", ".join(f"{what}: {value:.1f}" for what, value in limits.items())
    print(f"{measured} (reads and products by their quickest sample, copies by the median)")
    if options.json:
        place = {"threads": options.threads} if options.device.type == "cpu" else gpu_facts(options.device)
        write_result(options.json, name, {**place, "limits": limits, "rows": rows})


def gpu_facts(device: torch.device) -> dict[str, str | None]:
    """Returns the GPU and the library versions that a measurement depends on."""
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "triton": version("triton")}
    return {"gpu": describe(device), **versions}


def _samples_ms(forms: Mapping[str, Form], rounds: int, device: torch.device) -> dict[str, list[float]]:
    sample = _CudaClock(device).sample_ms if device.type == "cuda" else _sample_cpu_ms
    samples: dict[str, list[float]] = {name: [] for name in forms}
    for form in forms.values():
        form()
    for _ in range(rounds):
        for name, form in forms.items():
            samples[name] += sample(form)
    return samples


def _sample_cpu_ms(form: Form) -> list[float]:
    repeats = max(1, round(LEAST_SAMPLE_S / max(1e-6, _time_s(form, 1))))
    return [_time_s(form, repeats) / repeats * 1e3]


def _time_s(form: Form, repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        form()
    return time.perf_counter() - begin


class _CudaClock:
    """Times single calls by the device's clock, each with a cold cache."""

    def __init__(self, device: torch.device):
        self._cache = torch.zeros(CACHE_BYTES // 4, device=device)

    def sample_ms(self, form: Form) -> list[float]:
        spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        for _ in range(CUDA_SAMPLES_A_ROUND):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._cache.sum()
            begin.record()
            form()
            end.record()
            spans.append((begin, end))
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in spans]
