"""Estimates the memory that a scheduler on a CPU needs for its weights, before it is started."""

import struct
from math import prod
from pathlib import Path

from messages.config.pooling import choose_dtype
from messages.config.server import Config, ModelConfig
from messages.errors import BootError
from runtime.gguf.conversion import is_in_blocks
from runtime.gguf.gguf_file import read_gguf
from runtime.machine import CGROUP, CPU_INFO, MEMORY_INFO, available_memory_bytes, computes_bfloat16
from runtime.model_files import WEIGHT_FILES
from runtime.stage_files import read_safetensors_header

GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""If one of these exists, torch may find a GPU."""

MAX_OF_MEMORY = 0.5
"""Fraction of the available memory. If weights take more, the scheduler fails, not the launcher."""


def find_weight_bytes(config: Config) -> int:
    """Returns about the bytes that schedulers will share; 0 if they share none, or if that is uncertain.

    These are the tensors of the checkpoint in the number format of the model, or in the file's blocks (GGUF).
    """
    model, run = config.model, config.run
    is_shared = model.share_weights and run.data_parallel > 0 and run.num_ranks == 1
    is_read_whole = model.quantization == "none" and model.load_format in ("auto", "safetensors", "gguf")
    if may_use_gpu(model) or not is_shared or not is_read_whole:
        return 0
    dtype = choose_dtype(model.dtype, config.facts.pooling)
    is_small = dtype == "float16" or dtype == "bfloat16"
    value_bytes = 2 if is_small or (dtype == "auto" and computes_bfloat16(CPU_INFO)) else 4
    try:
        num_bytes = _count_bytes(Path(config.facts.model_dir), value_bytes, 4 if dtype == "auto" else value_bytes)
    except (BootError, OSError, ValueError, TypeError, KeyError, AttributeError, struct.error):
        return 0  # the scheduler reports what is wrong with the file
    return num_bytes if num_bytes <= MAX_OF_MEMORY * available_memory_bytes(MEMORY_INFO, CGROUP) else 0


def may_use_gpu(model: ModelConfig) -> bool:
    """Returns whether the device is a GPU, or will be one if torch finds it."""
    return model.device_type == "cuda" or (
        model.device_type == "auto" and any(Path(file).exists() for file in GPU_FILES)
    )


def _count_bytes(model_dir: Path, value_bytes: int, bytes_outside_blocks: int) -> int:
    sizes: dict[str, int] = {}
    for file in model_dir.glob(WEIGHT_FILES["safetensors"].pattern):
        sizes |= {name: prod(tensor["shape"]) for name, tensor in read_safetensors_header(file)[1].items()}
    if sizes or not any(model_dir.glob(WEIGHT_FILES["gguf"].pattern)):
        return sum(sizes.values()) * value_bytes
    model = read_gguf(model_dir)
    value_bytes = bytes_outside_blocks if is_in_blocks(model) else value_bytes
    return sum(
        tensor.num_bytes if tensor.type.is_in_blocks else prod(tensor.shape) * value_bytes
        for tensor in model.tensors.values()
    )
