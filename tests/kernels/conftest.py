"""Every test runs with the plain-torch references, and with the C kernels of each instruction set that runs here."""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from kernels.cpu.build import FLAGS, ISA_FLAGS, RUNTIME_UNITS, SOURCE, built_isas, find_compiler
from kernels.cpu.library import unload_kernels, use_library
from tests.kernels.c_library import built_library

SOFTWARE_TILES = Path(__file__).parent / "cpu" / "software_tiles.h"
MODULES_WITH_TILES = ("test_packed_linear", "test_paged_prefill")

# One thread computes: the tensors are small, and other processes want the cores.
torch.set_num_threads(1)


@pytest.fixture(autouse=True, params=["torch", *built_isas()])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """What the launchers use in this test: "torch", or the instruction set of the C kernels."""
    if request.param == "torch":
        unload_kernels()
        yield request.param
        return
    is_available = use_library(built_library(), request.param) == request.param
    if not is_available and request.param == "amx" and request.module.__name__.endswith(MODULES_WITH_TILES):
        is_available = use_library(request.getfixturevalue("library_with_software_tiles"), "avx512") == "avx512"
    if not is_available:
        pytest.skip(f"this processor does not run {request.param}")
    yield request.param
    unload_kernels()


@pytest.fixture(scope="session")
def library_with_software_tiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels for tiles, with the tile instructions in C and under the name of those without."""
    compiler, folder = find_compiler(), tmp_path_factory.mktemp("tiles")
    with_tiles = [*ISA_FLAGS["amx"], "-include", str(SOFTWARE_TILES), "-DISA=avx512", "-c", str(SOURCE / "kernels.c")]
    _compile([*compiler, *FLAGS, *with_tiles, "-o", str(folder / "kernels.o")])
    for name in RUNTIME_UNITS:
        _compile([*compiler, *FLAGS, "-c", str(SOURCE / f"{name}.c"), "-o", str(folder / f"{name}.o")])
    objects = [str(folder / f"{name}.o") for name in ("kernels", *RUNTIME_UNITS)]
    _compile([*compiler, "-shared", "-o", str(folder / "kernels.so"), *objects, "-lm"])
    return folder / "kernels.so"


def _compile(command: Sequence[str]) -> None:
    """Skips the test where the compiler does not know of tiles."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if ran.returncode:
        pytest.skip(f"the compiler does not build the kernels for tiles: {ran.stderr[-500:]}")
