"""Chooses what computes an operation: a kernel of the tensor's device, or else the plain-torch reference.

No other file of `kernels` asks what device a tensor is on. The kernels of a device are a folder with a function that
finds one by its operation's name; its line in `find_implementation` makes every operation use them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels.cpu.launchers import find_launcher
from kernels.gpu import triton_kernels
from kernels.plans.decode_work import UNCOMPILED, DecodeShape

FP8_CAPABILITY = (8, 9)

Implementation = Callable[..., Any]
"""Takes an operation's arguments. Returns `NotImplemented` for shapes or formats that its kernel does not take."""


def find_implementation(name: str, x: Tensor) -> Implementation | None:
    """Returns the kernel of an operation for tensors like `x`, or `None` if their device has none."""
    kernel = triton_kernels.find_triton_kernel(name)
    if kernel is not None and x.device.type == triton_kernels.device_type():
        return kernel
    return find_launcher(name, x.dtype) if x.is_cpu else None


def call(name: str, x: Tensor, reference: Implementation, *arguments: Any) -> Any:
    """Calls the kernel of an operation for tensors like `x`, or its reference if no kernel takes the arguments."""
    implementation = find_implementation(name, x)
    result = NotImplemented if implementation is None else implementation(*arguments)
    return reference(*arguments) if result is NotImplemented else result


def is_on_cpu(device: torch.device) -> bool:
    return device.type == "cpu"


def has_fp8(device: torch.device) -> bool:
    """True if the device's processors convert float8_e4m3fn; of GPUs that is from Ada and Hopper on."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= FP8_CAPABILITY


def count_programs(shape: DecodeShape, device: torch.device) -> int:
    """Returns how many programs of the decode attention kernel the device runs side by side.

    It follows from the registers and the shared memory that the compiled kernel takes of a processor.
    """
    if device.type != "cuda":
        return UNCOMPILED
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count * triton_kernels.programs_a_processor("paged_decode", shape, properties)
