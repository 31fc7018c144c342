"""The Triton forms of this process: loaded once, looked up by operation by the launchers of `kernels/`.

Triton is not installed beside a CPU build of torch, so nothing but this file names the modules that import it.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor

Form = Callable[..., Any]
"""Takes what the launcher of the same name takes."""

NAMES: tuple[str, ...] = (
    "add_biases",
    "allow_tokens",
    "draw",
    "filter_min_p",
    "filter_top",
    "gelu",
    "greedy",
    "layer_norm",
    "paged_decode",
    "paged_prefill",
    "penalize_occurrence",
    "penalize_repetition",
    "rms_norm",
    "rotate_store",
    "sample",
    "silu_mul",
    "take_tokens",
    "top_logprobs",
)
"""The operations with a Triton form: `kernels/gpu/<name>.py` has a function of that name."""

_forms: dict[str, Form] = {}
_device_type = "cuda"


def find_form(name: str, x: Tensor) -> Form | None:
    """Returns the Triton form of an operation for tensors like `x`; None: the launcher goes on without."""
    form = _forms.get(name)
    # The dictionary first: where no forms are loaded, asking the tensor would be most of the cost.
    return form if form is not None and x.device.type == _device_type else None


def load_forms(device_type: str = "cuda") -> None:
    """From now on launchers use the Triton forms for tensors on `device_type` ("cpu": Triton's interpreter)."""
    global _device_type  # noqa: PLW0603
    _device_type = device_type
    for name in NAMES:
        _forms[name] = getattr(import_module(f"kernels.gpu.{name}"), name)


def unload_forms() -> None:
    """Launchers use their references."""
    _forms.clear()
