"""The C kernels of this process: loaded once, looked up by operation and dtype."""

import ctypes
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kernels.cpu.arguments import INTEGER, POINTER, STRUCTURES, Arguments
from kernels.cpu.build import (
    PREBUILT,
    BuildError,
    build,
    build_once,
    built_isas,
    can_keep,
    find_compiler,
    is_trusted,
    library_path,
    prebuilt_name,
)

log = logging.getLogger("sluice.kernels")

Run = Callable[[Arguments], None]
"""Calls a C function. Raises `MemoryError`."""

Report = Callable[[str, float | None], None]

BUILDING = "building the C kernels"

ISA_VARIABLE = "SLUICE_CPU_ISA"
ISA_NUMBERS = {"portable": 0, "avx2": 1, "avx512": 2, "amx": 3}
FORMATS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
MAX_HEAD_DIM, MAX_QUERIES_A_HEAD = 576, 64


@dataclass(frozen=True)
class Kernel:
    """A C function. To call it, make its `arguments` and `run` it with them."""

    name: str
    arguments: type[Arguments]
    run: Run
    address: int


_kernels: dict[tuple[str, torch.dtype], Kernel] = {}
"""By operation and dtype. While they are observed, the observers run them."""

_libraries: list[ctypes.CDLL] = []
"""The library in use, if any."""


def find_kernel(name: str, dtype: torch.dtype) -> Kernel | None:
    """Returns the C kernel of an operation for tensors of this dtype, or `None` if none is loaded."""
    return _kernels.get((name, dtype))


def load_kernels(report: Report) -> str | None:
    """Loads the C kernels, built now unless `pip install` has built them; returns the instruction set.

    Returns `None` if SLUICE_CPU_ISA is "none", or, with a warning, if there are no kernels.
    """
    requested = os.environ.get(ISA_VARIABLE, "")
    if requested == "none":
        unload_kernels()
        return None
    try:
        if (PREBUILT / prebuilt_name()).exists():
            return use_library(PREBUILT / prebuilt_name(), requested)
    except OSError as error:
        log.warning("%s cannot be used: %s", PREBUILT / prebuilt_name(), error)
    try:
        compiler = find_compiler()
        path = library_path(compiler)
        if is_trusted(path):
            return use_library(path, requested)
        report(BUILDING, None)
        if can_keep():
            log.info("building the C kernels with %s: once, and kept as %s", compiler[0], path)
            build_once(path, lambda: build(compiler, path, report_progress=lambda fraction: report(BUILDING, fraction)))
            return use_library(path, requested)
        log.warning("building the C kernels with %s: %s cannot be written, so at each start", compiler[0], path.parent)
        with tempfile.TemporaryDirectory(prefix="sluice-kernels-") as scratch:
            build(compiler, Path(scratch) / path.name, report_progress=lambda fraction: report(BUILDING, fraction))
            return use_library(Path(scratch) / path.name, requested)
    except (BuildError, OSError) as error:
        unload_kernels()
        log.warning(
            "no C kernels: %s. Attention, norms and activations run on torch alone: a step takes several times as "
            "long. A C compiler (gcc or clang) on the PATH mends it",
            error,
        )
        return None


def use_library(path: Path, requested: str = "") -> str:
    """Loads the kernels of this library for the instruction set `requested`, or else the best that runs here.

    Returns the instruction set.
    """
    library = ctypes.CDLL(str(path))
    runnable = [
        isa
        for isa in built_isas()
        if hasattr(library, f"greedy_float32_{isa}") and library.sluice_supports(ISA_NUMBERS[isa])
    ]
    if requested and requested not in runnable:
        log.warning("%s=%s: this processor runs %s; %s is taken", ISA_VARIABLE, requested, runnable, runnable[0])
    isa = requested if requested in runnable else runnable[0]
    region = find_parallel_region()
    library.sluice_set_parallel_region.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.sluice_set_parallel_region(*(region or (None, None)))
    if region is None:
        log.warning("torch's OpenMP library is not found: the C kernels use one thread")
    unload_kernels()
    for name in STRUCTURES:
        for dtype, format_name in FORMATS.items():
            suffix = f"{format_name}_{isa}"
            if hasattr(library, f"{name}_{suffix}"):
                _kernels[name, dtype] = _bind(library, name, suffix)
    library.sluice_replay.argtypes = [POINTER, INTEGER, POINTER]
    library.sluice_begin_replay.argtypes = [POINTER, INTEGER]
    library.sluice_replay.restype = library.sluice_end_replay.restype = INTEGER
    _libraries.append(library)
    return isa


def unload_kernels() -> None:
    """Makes operations use their references."""
    _kernels.clear()
    _libraries.clear()


@contextmanager
def observed_kernels(observe: Callable[[Kernel], Run]) -> Iterator[None]:
    """Makes launchers run the result of `observe` for each kernel, inside the block."""
    before = dict(_kernels)
    _kernels.update({key: replace(kernel, run=observe(kernel)) for key, kernel in before.items()})
    try:
        yield
    finally:
        _kernels.update(before)


def find_library() -> ctypes.CDLL:
    """Returns the library in use, whose functions make captured calls (source/crew.c); kernels must be loaded."""
    return _libraries[0]


def find_parallel_region() -> tuple[int | None, int | None] | None:
    """Returns the addresses of GOMP_parallel and omp_get_max_threads in torch's OpenMP library, `None` if not found.

    A second OpenMP library would have its own threads, which would contend with torch's for the cores.
    """
    candidates: list[Any] = [*_loaded_openmp_libraries(), None]
    for candidate in candidates:
        try:
            library = ctypes.CDLL(candidate)
            region, threads = library.GOMP_parallel, library.omp_get_max_threads
            return ctypes.cast(region, ctypes.c_void_p).value, ctypes.cast(threads, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


def _loaded_openmp_libraries() -> Sequence[str]:
    """Returns the OpenMP libraries that this process has mapped, torch's own first."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in lines if "omp" in line.rpartition("/")[2]}
    found = [path for path in paths if Path(path).name.startswith(("libgomp", "libomp", "libiomp5"))]
    return sorted(found, key=lambda path: ("torch" not in path, path))


def _bind(library: ctypes.CDLL, name: str, suffix: str) -> Kernel:
    function: Any = library[f"{name}_{suffix}"]
    function.argtypes = [ctypes.POINTER(STRUCTURES[name])]
    function.errcheck = _check
    return Kernel(name, STRUCTURES[name], function, ctypes.cast(function, ctypes.c_void_p).value or 0)


def _check(result: int, function: Any, arguments: Any) -> None:
    if result != 0:
        raise MemoryError(f"{function.__name__}: no memory for partial results")
