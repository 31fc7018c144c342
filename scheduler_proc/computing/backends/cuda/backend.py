"""CUDA GPUs as a backend."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed

from kernels.cpu.library import load_kernels
from kernels.dispatch import has_fp8
from messages.config.server import CacheConfig, Config, ModelConfig
from messages.errors import BootError
from scheduler_proc.computing.backends.backend import ModelParts, OwnWeights, Place, RunnerFactory
from scheduler_proc.computing.backends.cpu.cores import set_threads
from scheduler_proc.computing.backends.cuda.device import CudaDevice
from scheduler_proc.computing.backends.cuda.loading import GpuRunnerFactory
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.parallel import Meeting, ParallelGroup
from scheduler_proc.computing.placement import DTYPES, Placement, find_kv_codes, find_quantization
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.step.shapes import StepLimits


class CudaBackend:
    name = "cuda"
    default_step_tokens = 8192
    keeps_memory = False

    def is_available(self) -> bool:
        return torch.cuda.is_available()

    def find_placement(self, model: ModelConfig, cache: CacheConfig, hf_config: HfConfig, number: int = 1) -> Placement:
        device = _find_gpu(model.devices, number)
        quantization = host_quantization = None
        if model.cpu_experts == "none":
            known = ("fp8",) if model.quantization == "fp8" and has_fp8(device) else ()
            quantization = find_quantization(model, known, "on this GPU")
        else:
            host_quantization = find_quantization(model, ("int8", "int4"), "for --cpu-experts")
        if model.dtype == "auto":
            stored = hf_config.text("dtype", hf_config.text("torch_dtype", "bfloat16"))
            dtype = torch.float16 if stored == "float16" else torch.bfloat16
        else:
            dtype = DTYPES[model.dtype]
        kv_codes = find_kv_codes(cache, self.name, "fp8", torch.float8_e4m3fn)
        if kv_codes is not None and not has_fp8(device):
            raise BootError(
                "--kv-cache-dtype fp8: this GPU has no fp8, which came with Ada and Hopper; leave it at auto"
            )
        if kv_codes is not None and cache.block_size == 1:
            raise BootError("--kv-cache-dtype fp8: pages need 2 tokens or more on CUDA; raise --block-size")
        return Placement(device, dtype, quantization, kv_codes, host_quantization=host_quantization)

    def check_model(self, config: Config, model: ModelDescription | None) -> None:
        if config.run.pipeline_parallel > 1:
            raise BootError(
                "--pipeline-parallel: stages have never been run on GPUs; use --tensor-parallel, or --device cpu"
            )
        flags, is_divided = config.model, config.run.tensor_parallel > 1
        has_host_experts = flags.cpu_experts != "none"
        for flag, is_refused, reason in (
            ("cpu-experts", has_host_experts and is_divided, "several ranks have no experts in the host's memory"),
            ("cpu-experts", has_host_experts and model is None, "transformers' code has its experts on the GPU"),
            ("deterministic", has_host_experts, "--cpu-experts computes with kernels of the CPU, whose bits differ"),
            ("deterministic", is_divided, "NCCL's sums of several ranks depend on the step; use --data-parallel"),
            (
                "deterministic",
                model is None,
                "torch's products in transformers' code depend on the step; take a family in README.md",
            ),
        ):
            if is_refused and (flag == "cpu-experts" or flags.deterministic):
                raise BootError(f"--{flag}: {reason}, or leave the flag out")

    def bind(self, config: Config, placement: Placement, place: Place) -> None:
        """Libraries that are given no device, such as Triton, use this GPU afterwards."""
        if placement.device.index:
            torch.cuda.set_device(placement.device)
        if config.model.cpu_experts != "none":
            set_threads(config.model.cpu_threads, config.max_local_engines, place.engine)

    def load_kernels(self, model: ModelConfig, report: Report) -> None:
        """Loads the kernels of experts in the host's memory.

        The factory loads Triton's kernels: it reports if they cannot be used.
        """
        if model.cpu_experts != "none":
            load_kernels(report)

    def join_ranks(self, meeting: Meeting, name: str, rank: int, size: int) -> ParallelGroup:
        """Connects the ranks with NCCL."""
        return meeting.join(name, rank, size, _connect, sums_in_rank_order=False)

    def free_bytes(self, config: Config, placement: Placement) -> int:
        free_bytes, total_bytes = torch.cuda.mem_get_info(placement.device)
        return int(total_bytes * config.cache.gpu_memory_utilization) - (total_bytes - free_bytes)

    def product_dtype(self, placement: Placement) -> torch.dtype:
        return placement.dtype

    def step_bytes(self, model: ModelDescription, placement: Placement, limits: StepLimits) -> None:
        return None

    def cache_bytes(self, config: Config, left_bytes: int, needed_bytes: int) -> int:
        return left_bytes

    def open_weights(self, config: Config, place: Place, identity: bytes) -> OwnWeights:
        return OwnWeights()

    def make_factory(self, model: ModelParts, report: Report, main: RunnerFactory | None = None) -> GpuRunnerFactory:
        device = main.device if isinstance(main, GpuRunnerFactory) else self.open_device(model.placement)
        return GpuRunnerFactory(model, device, report)

    def open_device(self, placement: Placement) -> CudaDevice:
        return CudaDevice(placement.device)


def _connect(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return distributed.ProcessGroupNCCL(store, rank, size, options)


def _find_gpu(devices: Sequence[str], number: int) -> torch.device:
    """Returns the GPU of the rank with this number: from `devices`, or from all if none are named.

    Raises `BootError` if there are fewer.
    """
    if number == 1 and not devices:
        return torch.device("cuda:0")
    num_gpus = torch.cuda.device_count()
    names = devices or [f"cuda:{index}" for index in range(num_gpus)]
    if number > len(names):
        source = "--device names" if devices else "this machine has"
        raise BootError(
            f"rank {number} of all engines has no GPU: {source} {len(names)} ({', '.join(names)}), and each takes one; "
            "lower --data-parallel or --tensor-parallel"
        )
    device = torch.device(names[number - 1])
    if device.index >= num_gpus:
        raise BootError(f"--device {device}: torch finds {num_gpus} CUDA devices, the last is cuda:{num_gpus - 1}")
    return device
