import os
from pathlib import Path
from typing import Literal

import pytest
import torch

from kernels.arguments.block_forms import GGUF_FORMS
from kernels.arguments.packed_forms import FORMS
from kernels.cpu.library import unload_kernels, use_library
from messages.config.server import CacheConfig, ModelConfig
from messages.errors import BootError
from runtime.gguf.block_types import BLOCK_TYPES
from runtime.gguf.conversion import IN_BLOCKS
from runtime.numa import Share
from scheduler_proc.computing.backends.cpu import cores
from scheduler_proc.computing.backends.cpu.cores import set_threads
from scheduler_proc.computing.backends.registry import find_backend
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.placement import Placement
from tests.kernels.c_library import built_library


def find_placement(model: ModelConfig, cache: CacheConfig, hf_config: HfConfig, number: int = 1) -> Placement:
    return find_backend(model).find_placement(model, cache, hf_config, number)


@pytest.mark.parametrize(("flags", "dtype"), [("amx_bf16", torch.bfloat16), ("avx2", torch.float32)])
def test_the_dtype_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, dtype: torch.dtype) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags\t: {flags}\n", encoding="utf-8")
    monkeypatch.setattr(cores, "CPU_INFO", tmp_path / "cpuinfo")
    stored = HfConfig({"torch_dtype": "float16"})
    assert find_placement(ModelConfig(device="cpu"), CacheConfig(), stored).dtype == dtype
    assert find_placement(ModelConfig(device="cpu", dtype="float16"), CacheConfig(), stored).dtype == torch.float16


def test_weights_in_blocks_are_computed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    use_library(built_library())
    monkeypatch.setattr("scheduler_proc.computing.backends.cpu.backend.auto_dtype", lambda: torch.bfloat16)
    blocks, cpu, int8 = HfConfig({IN_BLOCKS: True}), ModelConfig(device="cpu"), CacheConfig(kv_cache_dtype="int8")
    found = find_placement(cpu, CacheConfig(), blocks)
    assert (found.dtype, found.kv_dtype) == (torch.float32, torch.float16)
    assert found.texts == {"device": "cpu", "dtype": "float32", "kv_cache_dtype": "float16"}
    assert find_placement(cpu, int8, blocks).kv_dtype == torch.int8
    quantized = ModelConfig(device="cpu", quantization="int8")
    for model, config in ((cpu, HfConfig({})), (cpu, HfConfig({IN_BLOCKS: False})), (quantized, blocks)):
        found = find_placement(model, CacheConfig(), config)
        assert (found.dtype, found.kv_dtype) == (torch.bfloat16, torch.bfloat16)
    assert find_placement(ModelConfig(device="cpu", dtype="float32"), CacheConfig(), blocks).kv_dtype == torch.float32
    assert find_placement(ModelConfig(device="cpu", dtype="bfloat16"), CacheConfig(), blocks).dtype == torch.bfloat16
    unload_kernels()
    assert find_placement(cpu, CacheConfig(), blocks).dtype == torch.bfloat16  # there blocks become numbers


def test_the_forms_of_gguf_are_as_large_as_its_types() -> None:
    types = {block_type.name: (block_type.block_values, block_type.block_bytes) for block_type in BLOCK_TYPES.values()}
    for name, form in GGUF_FORMS.items():
        assert (form.num_values, form.num_bytes) == types[name]
        assert name in FORMS


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        ({"torch_dtype": "float16"}, torch.float16),
        ({"dtype": "bfloat16"}, torch.bfloat16),
        ({"dtype": "float32"}, torch.bfloat16),
        ({}, torch.bfloat16),
    ],
)
def test_the_dtype_on_a_gpu(monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], dtype: torch.dtype) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = find_placement(ModelConfig(), CacheConfig(), HfConfig(fields))
    assert (found.device.type, found.dtype) == ("cuda", dtype)
    assert find_placement(ModelConfig(dtype="float32"), CacheConfig(), HfConfig(fields)).dtype == torch.float32
    assert find_placement(ModelConfig(device="cpu"), CacheConfig(), HfConfig(fields)).device.type == "cpu"


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_placement(ModelConfig(), CacheConfig(), HfConfig({})).device.type == "cpu"
    with pytest.raises(BootError, match="--device cuda: torch finds no CUDA device"):
        find_placement(ModelConfig(device="cuda"), CacheConfig(), HfConfig({}))


@pytest.mark.parametrize(("quantization", "name"), [("none", None), ("int8", "int8"), ("int4", "int4")])
def test_the_format_of_weights(quantization: Literal["none", "int8", "int4"], name: str | None) -> None:
    for dtype in ("auto", "float32", "bfloat16"):
        model = ModelConfig(device="cpu", dtype=dtype, quantization=quantization)
        assert find_placement(model, CacheConfig(), HfConfig({})).quantization == name


def test_quantization_where_it_is_not_supported_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    needs_gpu = "it needs a GPU with fp8: Ada, Hopper or later"
    for model, message in (
        (ModelConfig(quantization="int8"), "int8: not supported on this GPU; it needs --device cpu"),
        (ModelConfig(quantization="fp8"), f"fp8: not supported on this GPU; {needs_gpu}$"),
        (
            ModelConfig(quantization="fp8", cpu_experts="all"),
            f"fp8: not supported for --cpu-experts; {needs_gpu}; int8 and int4 can be used here",
        ),
        (ModelConfig(quantization="fp8", device="cpu"), f"fp8: not supported on a CPU; {needs_gpu}; int8 and int4"),
        (
            ModelConfig(quantization="int4", device="cpu", dtype="float16"),
            "int4: not supported with --dtype float16; it needs --device cpu",
        ),
    ):
        with pytest.raises(BootError, match=f"--quantization {message}"):
            find_placement(model, CacheConfig(), HfConfig({}))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    found = find_placement(ModelConfig(quantization="fp8"), CacheConfig(), HfConfig({}))
    assert (found.quantization, found.host_quantization) == ("fp8", None)
    found = find_placement(ModelConfig(quantization="int8", cpu_experts="all"), CacheConfig(), HfConfig({}))
    assert (found.quantization, found.host_quantization) == (None, "int8")
    assert (
        find_placement(ModelConfig(quantization="int4", device="cpu"), CacheConfig(), HfConfig({})).quantization
        == "int4"
    )


def test_codes_of_the_kv_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    fp8, int8 = CacheConfig(kv_cache_dtype="fp8"), CacheConfig(kv_cache_dtype="int8")
    cpu = ModelConfig(device="cpu", dtype="bfloat16")
    assert find_placement(ModelConfig(), fp8, HfConfig({})).kv_dtype == torch.float8_e4m3fn
    assert find_placement(cpu, int8, HfConfig({})).kv_dtype == torch.int8
    assert find_placement(cpu, CacheConfig(), HfConfig({})).kv_dtype == torch.bfloat16
    with pytest.raises(BootError, match="--kv-cache-dtype int8: not supported on cuda, which has auto and fp8"):
        find_placement(ModelConfig(), int8, HfConfig({}))
    with pytest.raises(BootError, match="--kv-cache-dtype fp8: not supported on cpu, which has auto and int8"):
        find_placement(cpu, fp8, HfConfig({}))
    with pytest.raises(BootError, match="pages need 2 tokens or more on CUDA; raise --block-size"):
        find_placement(ModelConfig(), CacheConfig(kv_cache_dtype="fp8", block_size=1), HfConfig({}))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(BootError, match="this GPU has no fp8"):
        find_placement(ModelConfig(), fp8, HfConfig({}))


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    try:
        set_threads(1)
        assert torch.get_num_threads() == 1
        set_threads(0)
        assert torch.get_num_threads() == len(os.sched_getaffinity(0))
        monkeypatch.setattr(cores, "allowed_cpus", lambda: frozenset(range(8)))
        set_threads(0, num_engines=3, engine=3)
        assert torch.get_num_threads() == 2
        with pytest.raises(BootError, match="engine 2 finds too few cores: 2 engines of 8 threads each need 16, and"):
            set_threads(0, num_engines=1, engine=2)
        with pytest.raises(BootError, match="lower --data-parallel, --tensor-parallel or --cpu-threads"):
            set_threads(3, num_engines=3, engine=1)
        set_threads(0, num_engines=2, engine=2, num_ranks=2)
        assert torch.get_num_threads() == 2
        with pytest.raises(BootError, match="2 engines of 2 ranks of 3 threads each need 12"):
            set_threads(3, num_engines=2, engine=1, num_ranks=2)
        pinned: list[Share] = []
        monkeypatch.setattr(cores, "pin", pinned.append)
        monkeypatch.setattr(cores, "read_nodes", lambda allowed: [frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7})])
        set_threads(0, num_engines=3, engine=2)
        assert (torch.get_num_threads(), pinned[-1].cpus) == (4, {4, 5, 6, 7})
        set_threads(0, num_engines=3, engine=3)
        assert (torch.get_num_threads(), pinned[-1].cpus) == (2, {0, 1, 2, 3})
        set_threads(2, num_engines=1, engine=1, num_ranks=2, rank=1)
        assert pinned[-1].cpus == {4, 5, 6, 7}
        with pytest.raises(BootError, match="engine 5 finds too few cores on its NUMA node: 3 engines of 2 threads"):
            set_threads(0, num_engines=3, engine=5)
    finally:
        torch.set_num_threads(before)


def test_each_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    def gpu_of(place: int, *devices: str) -> str:
        return str(
            find_placement(ModelConfig(device=",".join(devices) or "auto"), CacheConfig(), HfConfig({}), place).device
        )

    assert [gpu_of(1), gpu_of(2)] == ["cuda:0", "cuda:1"]
    assert gpu_of(1, "cuda:1", "cuda:0") == "cuda:1"
    with pytest.raises(BootError, match="rank 3 of all engines has no GPU: this machine has 2"):
        gpu_of(3)
    with pytest.raises(BootError, match="rank 2 of all engines has no GPU: --device names 1"):
        gpu_of(2, "cuda:0")
    with pytest.raises(BootError, match="--device cuda:2: torch finds 2 CUDA devices"):
        gpu_of(1, "cuda:2")
