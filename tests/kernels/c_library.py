"""The libraries of C kernels for tests: each is built once for all processes that run tests, and kept."""

import functools
import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from kernels.cpu.build import (
    FLAGS,
    ISA_FLAGS,
    PREBUILT,
    RUNTIME_UNITS,
    SOURCE,
    BuildError,
    build,
    build_once,
    find_compiler,
    library_path,
    prebuilt_name,
)
from kernels.cpu.headers import write_headers

BUILD_TIMEOUT_S = 900.0
"""A build takes half a minute of a quiet machine's time, and a busy one takes minutes."""

SOFTWARE_TILES = Path(__file__).parent / "cpu" / "software_tiles.h"
TILE_FLAGS = {
    "avx512": ISA_FLAGS["amx"],
    "avx2": [*ISA_FLAGS["avx2"], "-mamx-tile", "-mamx-int8"],  # whole numbers alone are multiplied on tiles then
}
"""By the instruction set whose name the kernels get."""


@functools.cache
def built_library() -> Path:
    """Returns the path of what a server loads: what the install has built, else what is built here.

    Skips the test where it cannot be built.
    """
    installed = PREBUILT / prebuilt_name()
    if installed.exists():
        return installed
    try:
        compiler = find_compiler()
        path = library_path(compiler)
        build_once(path, lambda: build(compiler, path))
    except BuildError as error:
        pytest.skip(str(error))
    return path


@functools.cache
def library_with_software_tiles(isa: str) -> Path:
    """Returns the path of the kernels for tiles, with the tile instructions in C, named as this instruction set.

    Less is optimised than in what ships, which has none of these tiles: the build takes a third of the time.
    Skips the test where the compiler does not know of tiles.
    """
    compiler = find_compiler()
    tiles_key = hashlib.sha256(SOFTWARE_TILES.read_bytes()).hexdigest()
    flags = [*TILE_FLAGS[isa], "-include", str(SOFTWARE_TILES), f"-DISA={isa}", "-O1"]
    path = library_path(compiler, [tiles_key, *flags])
    build_once(path, lambda: _build_with_tiles(compiler, path, flags))
    return path


def sanitized_library(isas: Sequence[str], flags: Sequence[str]) -> Path:
    """Returns the path of a library for these instruction sets, built with the flags of sanitizers.

    Skips the test where it cannot be built.
    """
    try:
        compiler = find_compiler()
        path = library_path(compiler, [*isas, *flags])
        build_once(path, lambda: build(compiler, path, flags, timeout_s=BUILD_TIMEOUT_S))
    except BuildError as error:
        pytest.skip(str(error))
    return path


def _build_with_tiles(compiler: Sequence[str], target: Path, tile_flags: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        include = write_headers(Path(scratch))
        objects = [f"{scratch}/{name}.o" for name in ("kernels", *RUNTIME_UNITS)]
        for name, made in zip(("kernels", *RUNTIME_UNITS), objects, strict=True):
            flags = tile_flags if name == "kernels" else ()
            _compile([*compiler, *FLAGS, *include, *flags, "-c", str(SOURCE / f"{name}.c"), "-o", made])
        _compile([*compiler, "-shared", "-o", f"{scratch}/kernels.so", *objects, "-lm"])
        Path(scratch, "kernels.so").replace(target)


def _compile(command: Sequence[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    if ran.returncode:
        pytest.skip(f"the compiler does not build the kernels for tiles: {ran.stderr[-500:]}")
