"""Every test runs with the plain-torch references, and with the C kernels of each instruction set that runs here."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.cpu.build import built_isas
from kernels.cpu.library import unload_kernels, use_library
from tests.kernels.c_library import TILE_FLAGS, built_library, library_with_software_tiles

MODULES_WITH_TILES = {
    "test_attention_bits": ["avx512"],
    "test_encoder_attention": ["avx512"],
    "test_expert_linear": ["avx512"],
    "test_packed_linear": ["avx512"],
    "test_paged_decode": ["avx512"],
    "test_paged_prefill": ["avx512"],
    "test_quantized_kv": ["avx512"],
    "test_quantized_linear": ["avx512", "avx2"],
}
"""The instruction sets with which tests can use tiles in software."""

WITHOUT_C_KERNELS = (
    *("test_add_biases", "test_allow_tokens", "test_decode_work", "test_dequantize_blocks", "test_filter_scores"),
    *("test_filter_unusual", "test_code_planes", "test_noise", "test_penalize_occurrence", "test_planes"),
    *("test_penalize_repetition", "test_rope", "test_take_tokens", "test_top_logprobs"),
)
"""Modules whose operations have none, so that one backend is enough."""

# One thread computes: the tensors are small, and other processes want the cores.
torch.set_num_threads(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.path.parent.name not in ("cpu", "gpu"):
        module = metafunc.definition.path.stem
        isas = [isa for isa in built_isas() if isa != "amx" or module in MODULES_WITH_TILES or may_have_tiles()]
        metafunc.parametrize("backend", ["torch"] if module in WITHOUT_C_KERNELS else ["torch", *isas], indirect=True)


@functools.cache
def may_have_tiles() -> bool:
    """False if the processor is known to have none: then a fifth of the tests would only be collected and skipped."""
    try:
        return "amx_tile" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return True


@pytest.fixture(autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """What the launchers use in this test: "torch", or the instruction set of the C kernels."""
    if request.param == "torch":
        unload_kernels()
        yield request.param
        return
    is_available = use_library(built_library(), request.param) == request.param
    if not is_available and request.param == "amx" and request.path.stem in MODULES_WITH_TILES:
        isa, library = request.getfixturevalue("with_software_tiles")
        is_available = isa in MODULES_WITH_TILES[request.path.stem] and use_library(library, isa) == isa
    if not is_available:
        pytest.skip(f"this processor does not run {request.param}")
    yield request.param
    unload_kernels()


@pytest.fixture(scope="session")
def with_software_tiles() -> tuple[str, Path]:
    """The instruction set whose name they have, and the kernels for tiles, on a processor that has none.

    Where they cannot be built, that is tried once.
    """
    for isa in TILE_FLAGS:
        if use_library(built_library(), isa) == isa:
            return isa, library_with_software_tiles(isa)
    pytest.skip("this processor has no vectors for what is around the tiles")
