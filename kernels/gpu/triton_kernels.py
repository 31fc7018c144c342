"""The Triton kernels of this process: loaded once, looked up by operation.

Triton is not installed with a CPU build of torch, so only this file names the modules that import it.
"""

from collections.abc import Callable
from importlib import import_module
from traceback import walk_tb
from typing import Any

from kernels.gpu.launch_table import has_fixed_launches

TritonKernel = Callable[..., Any]
"""Takes the arguments of the operation of the same name."""

NAMES: tuple[str, ...] = (
    "add_biases",
    "allow_tokens",
    "apply_bitmask",
    "combine_experts",
    "draw",
    "draw_filtered",
    "encoder_attention",
    "expert_plain_linear",
    "expert_planes_linear",
    "filter_min_p",
    "filter_top",
    "gather_rows",
    "gated_delta",
    "gated_norm",
    "gelu",
    "gelu_mul",
    "greedy",
    "latent_decode",
    "latent_prefill",
    "layer_norm",
    "look_up_planes",
    "lora_linear",
    "mamba_scan",
    "paged_decode",
    "paged_prefill",
    "penalize_occurrence",
    "penalize_repetition",
    "planes_linear",
    "rms_norm",
    "rotate_store",
    "route_tokens",
    "sample",
    "short_conv",
    "sigmoid_gate",
    "silu_mul",
    "store_hidden",
    "store_latents",
    "swiglu_oai",
    "take_tokens",
    "top_logprobs",
)
"""The operations with a Triton kernel: `kernels/gpu/<name>.py` has a function of that name."""

FIXED: dict[str, str] = {
    "paged_decode": "split_decode",
    "plain_linear": "plain_linear",
}
"""The operations with another kernel, or one at all, if launches are fixed: the files that have it."""

_loaded: dict[str, TritonKernel] = {}
_device_type = "cuda"


def find_triton_kernel(name: str) -> TritonKernel | None:
    """Returns the Triton kernel of an operation, or `None` if it has none or has been left out."""
    return _loaded.get(name)


def device_type() -> str:
    """Returns the type of the device that the kernels are loaded for."""
    return _device_type


def programs_a_processor(name: str, *shape: Any) -> int:
    """Returns how many programs of an operation's kernel, compiled for `shape`, a processor runs side by side.

    It compiles the kernel, and needs a CUDA device; 1 if the kernel has been left out.
    """
    return import_module(f"kernels.gpu.{name}").programs_a_processor(*shape) if name in _loaded else 1


def load_triton_kernels(device_type: str = "cuda") -> None:
    """Makes operations use the Triton kernels for tensors on `device_type` ("cpu": Triton's interpreter)."""
    global _device_type  # noqa: PLW0603
    _device_type = device_type
    _loaded.clear()
    for name, file in (dict(zip(NAMES, NAMES, strict=True)) | (FIXED if has_fixed_launches() else {})).items():
        _loaded[name] = getattr(import_module(f"kernels.gpu.{file}"), name)


def leave_out_failed(error: Exception) -> str | None:
    """Makes operations no longer use the kernel whose compilation or launch raised `error`; returns its operation.

    Returns `None`, and leaves out no kernel, if the error was not raised by Triton below one of the kernels.
    """
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    if not any(module.startswith("triton.") for module in modules):
        return None
    operations = [module.removeprefix("kernels.gpu.") for module in modules]
    name = next((name for name in reversed(operations) if name in _loaded), None)
    if name is not None:
        del _loaded[name]
    return name
