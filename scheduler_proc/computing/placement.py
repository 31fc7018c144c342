"""Where the model runs and in which number format."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.operations.quantized_linear import Bits
from messages.config.server import CacheConfig, ModelConfig
from messages.errors import BootError
from runtime.machine import CPU_INFO, computes_bfloat16
from runtime.numa import Share, allowed_cpus, divide, pin, read_nodes
from scheduler_proc.computing.hf_config import HfConfig

WEIGHT_BITS: dict[str, Bits | None] = {"none": None, "int8": 8, "int4": 4}
KV_CODES = {"cuda": ("fp8", torch.float8_e4m3fn), "cpu": ("int8", torch.int8)}
"""Per device: the value of --kv-cache-dtype other than auto, and its dtype."""
FP8_CAPABILITY = (8, 9)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Placement:
    """The device, the dtype of weights, the bits of linear layers' weights if they are quantized, and the KV cache's
    codes (`kernels/operations/quantized_kv.py`) if it is."""

    device: torch.device
    dtype: torch.dtype
    weight_bits: Bits | None = None
    kv_codes: torch.dtype | None = None

    @property
    def kv_dtype(self) -> torch.dtype:
        return self.kv_codes or self.dtype

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def texts(self) -> dict[str, str]:
        """The resolved values of the flags with these names."""
        kv_cache_dtype = str(self.kv_dtype).removeprefix("torch.")
        return {"device": str(self.device), "dtype": self.dtype_name, "kv_cache_dtype": kv_cache_dtype}


def find_placement(model: ModelConfig, cache: CacheConfig, hf_config: HfConfig, place: int = 1) -> Placement:
    """Resolves `--device`, `--dtype` and `--kv-cache-dtype` for the rank of this number, of all of all engines.

    Raises `BootError` for what cannot be had.
    """
    if model.device_type == "cuda" and not torch.cuda.is_available():
        raise BootError("--device cuda: torch finds no CUDA device; --device cpu runs without one")
    is_cuda = model.device_type == "cuda" or (model.device_type == "auto" and torch.cuda.is_available())
    device = _find_gpu(model.devices, place) if is_cuda else torch.device("cpu")
    if model.quantization != "none" and (is_cuda or model.dtype == "float16"):
        where = "on CUDA" if is_cuda else "with --dtype float16"
        raise BootError(
            f"--quantization {model.quantization}: not supported {where} yet; it needs --device cpu and --dtype "
            "bfloat16 or float32"
        )
    if model.dtype != "auto":
        dtype = DTYPES[model.dtype]
    elif is_cuda:
        stored = hf_config.text("dtype", hf_config.text("torch_dtype", "bfloat16"))
        dtype = torch.float16 if stored == "float16" else torch.bfloat16
    else:
        dtype = auto_cpu_dtype()
    return Placement(device, dtype, WEIGHT_BITS[model.quantization], find_kv_codes(cache, device))


def find_kv_codes(cache: CacheConfig, device: torch.device) -> torch.dtype | None:
    """Returns the codes of the KV cache, `None` with `--kv-cache-dtype auto`.

    Raises `BootError` for those that the device does not have.
    """
    asked = cache.kv_cache_dtype
    known, dtype = KV_CODES[device.type]
    if asked == "auto":
        return None
    if asked != known:
        raise BootError(f"--kv-cache-dtype {asked}: not supported on {device.type}, which has auto and {known}")
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        raise BootError("--kv-cache-dtype fp8: this GPU has no fp8, which came with Ada and Hopper; leave it at auto")
    return dtype


def auto_cpu_dtype() -> torch.dtype:
    """Returns what `--dtype auto` means on this processor."""
    return torch.bfloat16 if computes_bfloat16(CPU_INFO) else torch.float32


def _find_gpu(devices: Sequence[str], place: int) -> torch.device:
    """Returns the GPU of the rank with this number: from `devices`, or from all if none are named.

    Raises `BootError` if there is none for it.
    """
    if place == 1 and not devices:
        return torch.device("cuda:0")
    num_gpus = torch.cuda.device_count()
    names = devices or [f"cuda:{index}" for index in range(num_gpus)]
    if place > len(names):
        source = "--device names" if devices else "this machine has"
        raise BootError(
            f"rank {place} of all engines has no GPU: {source} {len(names)} ({', '.join(names)}), and each takes one; "
            "lower --data-parallel or --tensor-parallel"
        )
    device = torch.device(names[place - 1])
    if device.index >= num_gpus:
        raise BootError(f"--device {device}: torch finds {num_gpus} CUDA devices, the last is cuda:{num_gpus - 1}")
    return device


def use_gpu(device: torch.device) -> None:
    """All that names no GPU, Triton's kernels for one, means this one from now on."""
    if device.index:
        torch.cuda.set_device(device)


def find_share(num_engines: int, engine: int, num_ranks: int = 1, rank: int = 0) -> Share:
    """Returns which cores a rank of an engine has on this machine, whose engines are `num_engines` or more."""
    return divide(read_nodes(allowed_cpus()), num_engines * num_ranks, (engine - 1) * num_ranks + rank + 1)


def set_cpu_threads(cpu_threads: int, num_engines: int = 1, engine: int = 1, num_ranks: int = 1, rank: int = 0) -> None:
    """Torch computes with that many threads from now on; 0: one for each core, shared equally by all ranks of all
    engines. Where there are several NUMA nodes, the process runs on its own from now on.

    Raises `BootError` if schedulers up to number `engine` would have more threads than there are cores.
    """
    share = find_share(num_engines, engine, num_ranks, rank)
    num_cores = len(share.cpus)
    cpu_threads = cpu_threads or max(1, num_cores // share.count(num_engines * num_ranks))
    num_processes = share.count(max(num_engines, engine) * num_ranks)
    if num_processes > 1 and num_processes * cpu_threads > num_cores:
        ranks = f" of {num_ranks} ranks" if num_ranks > 1 else ""
        node = " on its NUMA node" if share.num_groups > 1 else ""
        raise BootError(
            f"engine {engine} finds too few cores{node}: {num_processes // num_ranks} engines{ranks} of {cpu_threads} "
            f"threads each need {num_processes * cpu_threads}, and there are {num_cores}; lower --data-parallel, "
            "--tensor-parallel or --cpu-threads"
        )
    pin(share)
    torch.set_num_threads(cpu_threads)
