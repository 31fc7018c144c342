"""Where the model runs and in which number formats."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from messages.config.server import CacheConfig, ModelConfig
from messages.errors import BootError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Placement:
    """The device, the dtype of weights and activations, the format of linear layers' weights if they are quantized, the
    dtype of the KV cache's codes (`kernels/operations/quantized_kv.py`) if it is quantized, and else the dtype of K and
    V if that is another than of activations; the dtype of linear layers' products if activations are rounded for them
    alone; last, the format of weights that the host computes with for a device, and which these are, in words."""

    device: torch.device
    dtype: torch.dtype
    quantization: str | None = None
    kv_codes: torch.dtype | None = None
    kv_numbers: torch.dtype | None = None
    products: torch.dtype | None = None
    host_quantization: str | None = None
    host_experts: str = ""

    @property
    def kv_dtype(self) -> torch.dtype:
        return self.kv_codes or self.kv_numbers or self.dtype

    @property
    def on_host(self) -> "Placement":
        """The placement of what the host computes for the device."""
        return replace(self, device=torch.device("cpu"), quantization=self.host_quantization)

    @property
    def dtype_name(self) -> str:
        return _name(self.dtype)

    @property
    def texts(self) -> dict[str, str]:
        """The resolved values of the flags with these names, and `products` if these have another dtype."""
        kv_cache_dtype = _name(self.kv_dtype)
        texts = {"device": str(self.device), "dtype": self.dtype_name, "kv_cache_dtype": kv_cache_dtype}
        if self.products not in (None, self.dtype):
            texts["products"] = _name(self.products)
        return texts | ({"cpu_experts": self.host_experts} if self.host_experts else {})


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def find_kv_codes(cache: CacheConfig, device: str, known: str, dtype: torch.dtype) -> torch.dtype | None:
    """Returns the dtype of the KV cache's codes, `None` with `--kv-cache-dtype auto`.

    `known` is the other value that `device` has. Raises `BootError` for one that it does not have.
    """
    asked = cache.kv_cache_dtype
    if asked == "auto":
        return None
    if asked != known:
        raise BootError(f"--kv-cache-dtype {asked}: not supported on {device}, which has auto and {known}")
    return dtype


def find_quantization(model: ModelConfig, known: Collection[str], where: str) -> str | None:
    """Returns the format that linear layers' weights are quantized to, `None` if they are not.

    `known` are those there are `where` the model runs. Raises `BootError` for another one.
    """
    asked = model.quantization
    if asked == "none" or asked in known:
        return None if asked == "none" else asked
    needs = "a GPU with fp8: Ada, Hopper or later" if asked == "fp8" else "--device cpu and --dtype bfloat16 or float32"
    others = f"; {' and '.join(known)} can be used here" if known else ""
    raise BootError(f"--quantization {asked}: not supported {where}; it needs {needs}{others}")
