"""Fine-grained fp8 (DeepSeek, Qwen): float8_e4m3fn with a scale for each block of a matrix, or for all of it."""

from collections.abc import Collection

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.loading.quantized.float_codes import fp8_weight
from scheduler_proc.computing.loading.quantized.stored_linear import LinearWeight, StoredLinear


class Fp8:
    """See `QuantizationMethod`."""

    endings = frozenset({"weight", "weight_scale_inv", "weight_scale"})

    def __init__(self, config: HfConfig, modules: Collection[str]):
        self._block = config.optional_pair("weight_block_size")

    def find_weight(self, linear: StoredLinear) -> LinearWeight:
        ending = "weight_scale" if linear.has("weight_scale") else "weight_scale_inv"
        return fp8_weight(linear, ending, self._block)
