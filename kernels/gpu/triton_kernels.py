"""The Triton kernels of this process: loaded once, looked up by operation.

Triton is not installed with a CPU build of torch, so only this file names the modules that import it.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from typing import Any

from kernels.gpu.launch_table import has_fixed_launches

TritonKernel = Callable[..., Any]
"""Takes the arguments of the operation of the same name."""

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
    files = {name: name for name in list_operations()} | (FIXED if has_fixed_launches() else {})
    _loaded.update({name: getattr(import_module(f"kernels.gpu.{file}"), name) for name, file in files.items()})


def list_operations() -> list[str]:
    """Returns the operations with a Triton kernel without fixed launches: a file here has a function of that name."""
    names = [file.stem for file in sorted(Path(__file__).parent.glob("[!_]*.py")) if file.stem not in FIXED.values()]
    return [name for name in names if hasattr(import_module(f"kernels.gpu.{name}"), name)]


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
