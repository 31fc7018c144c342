"""The CPU as a backend."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed

from kernels.cpu.library import find_kernel, load_kernels
from messages.config.scheduling import CPU_STEP_TOKENS
from messages.config.server import CacheConfig, Config, ModelConfig
from messages.errors import BootError
from runtime.gguf.conversion import IN_BLOCKS
from runtime.machine import CGROUP, MEMORY_INFO, available_memory_bytes
from runtime.numa import file_of_group
from scheduler_proc.computing.backends.backend import ModelParts, OwnWeights, Place, RunnerFactory, SharedWeights
from scheduler_proc.computing.backends.cpu.cores import auto_dtype, fastest_product_dtype, find_share, set_threads
from scheduler_proc.computing.backends.cpu.forward_passes import open_workspace
from scheduler_proc.computing.backends.cpu.loading import CpuRunnerFactory
from scheduler_proc.computing.backends.cpu.weight_memory import WeightMemory
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.kv_cache.kv_tensors import share_of_memory
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.parallel import Meeting, ParallelGroup
from scheduler_proc.computing.placement import DTYPES, Placement, find_kv_codes, find_quantization
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.step.shapes import StepLimits

GLOO_ADDRESS = "127.0.0.1"


class CpuBackend:
    name = "cpu"
    default_step_tokens = CPU_STEP_TOKENS
    keeps_memory = True

    def is_available(self) -> bool:
        return True

    def find_placement(self, model: ModelConfig, cache: CacheConfig, hf_config: HfConfig, number: int = 1) -> Placement:
        if model.cpu_experts != "none":
            raise BootError("--cpu-experts: on a CPU all weights are in the host's memory; leave the flag out")
        is_float16 = model.dtype == "float16"
        quantization = find_quantization(
            model, () if is_float16 else ("int8", "int4"), "with --dtype float16" if is_float16 else "on a CPU"
        )
        dtype, kv_numbers = auto_dtype() if model.dtype == "auto" else DTYPES[model.dtype], None
        if model.dtype == "auto" and model.quantization == "none" and _computes_in_blocks(hf_config):
            dtype, kv_numbers = torch.float32, torch.float16  # decision 0126
        kv_codes = find_kv_codes(cache, self.name, "int8", torch.int8)
        return Placement(torch.device("cpu"), dtype, quantization, kv_codes, kv_numbers)

    def check_model(self, config: Config, model: ModelDescription | None) -> None:
        """It computes every model; `--deterministic` asks for what it always does."""

    def bind(self, config: Config, placement: Placement, place: Place) -> None:
        if config.cache.kv_offload_gb:
            raise BootError(
                "--kv-offload-gb: on a CPU the KV cache is in the host's memory; raise --kv-cache-memory-gb instead"
            )
        run = config.run
        number = config.max_local_engines, place.engine, *_place_here(config, place)
        set_threads(config.model.cpu_threads, *number, may_wait=run.pipeline_parallel > 1)

    def load_kernels(self, model: ModelConfig, report: Report) -> None:
        load_kernels(report)

    def join_ranks(self, meeting: Meeting, name: str, rank: int, size: int) -> ParallelGroup:
        """Connects the ranks with Gloo through the loopback interface."""
        return meeting.join(name, rank, size, _connect)

    def free_bytes(self, config: Config, placement: Placement) -> int:
        return available_memory_bytes(MEMORY_INFO, CGROUP)

    def product_dtype(self, placement: Placement) -> torch.dtype:
        return fastest_product_dtype()

    def step_bytes(self, model: ModelDescription, placement: Placement, limits: StepLimits) -> int:
        return open_workspace(model, placement.dtype, limits).num_bytes

    def cache_bytes(self, config: Config, left_bytes: int, needed_bytes: int) -> int:
        return share_of_memory(config, left_bytes, needed_bytes)

    def open_weights(self, config: Config, place: Place, identity: bytes) -> SharedWeights:
        """Engines on the same cores share the memory of a file, unless flags say otherwise."""
        if place.weights_file is None or not config.model.share_weights:
            return OwnWeights()
        group = find_share(config.max_local_engines, place.engine, *_place_here(config, place)).group
        return WeightMemory(file_of_group(place.weights_file, group), identity)

    def make_factory(self, model: ModelParts, report: Report, main: RunnerFactory | None = None) -> CpuRunnerFactory:
        return CpuRunnerFactory(model.config, model.decoder, model.limits)


def _place_here(config: Config, place: Place) -> tuple[int, int]:
    """Returns the number of the engine's ranks on this machine, and the place of this one among them."""
    return len(config.local_ranks), config.local_ranks.index(place.rank)


def _computes_in_blocks(hf_config: HfConfig) -> bool:
    return hf_config.flag(IN_BLOCKS, False) and find_kernel("block_linear", torch.float32) is not None


def _connect(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    options = distributed.ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
    options._timeout = timeout
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=GLOO_ADDRESS, lazy_init=False)]
    return distributed.ProcessGroupGloo(store, rank, size, options)
