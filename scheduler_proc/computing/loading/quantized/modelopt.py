"""NVIDIA's ModelOpt: FP8 with one scale, and NVFP4 whose groups' scales have a scale of their own."""

from collections.abc import Collection

import torch

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.loading.quantized.float_codes import NVFP4_GROUP, fp8_weight, nvfp4_weight
from scheduler_proc.computing.loading.quantized.stored_linear import FLOATS, LinearWeight, StoredLinear


class Modelopt:
    """See `QuantizationMethod`. A module's tensors show their format."""

    endings = frozenset({"weight", "weight_scale", "weight_scale_2"})

    def __init__(self, config: HfConfig, modules: Collection[str]):
        config.choice("quant_algo", ("FP8", "NVFP4", "MIXED_PRECISION"))

    def find_weight(self, linear: StoredLinear) -> LinearWeight:
        if not linear.has("weight_scale_2"):
            return fp8_weight(linear, "weight_scale", None)
        bytes_OB = linear.tensor("weight", (torch.uint8,))
        shape = len(bytes_OB), linear.num_groups(2 * bytes_OB.shape[1], NVFP4_GROUP)
        scale_OG = linear.scale("weight_scale", (torch.float8_e4m3fn,), shape)
        return nvfp4_weight(bytes_OB, scale_OG * linear.scale("weight_scale_2", FLOATS, (), (1,)))
