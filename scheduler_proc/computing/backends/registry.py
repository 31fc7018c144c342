"""All backends, and the choice of one by `--device`."""

from messages.config.server import ModelConfig
from messages.errors import BootError
from scheduler_proc.computing.backends.backend import Backend
from scheduler_proc.computing.backends.cpu.backend import CpuBackend
from scheduler_proc.computing.backends.cuda.backend import CudaBackend

BACKENDS: tuple[Backend, ...] = (CudaBackend(), CpuBackend())
"""The first one available is the default."""


def find_backend(model: ModelConfig) -> Backend:
    """Raises `BootError` if the requested device is not available."""
    for backend in BACKENDS:
        if model.device_type in ("auto", backend.name) and backend.is_available():
            return backend
    raise BootError(
        f"--device {model.device}: torch finds no {model.device_type.upper()} device; --device cpu runs without one"
    )
