"""bitsandbytes: 4-bit indices of a table (nf4, fp4) with a scale per block of the flat weight, and int8 per output.

Shape legend: O outputs, I inputs, B bytes, K blocks of the flat weight.
"""

import json
from collections.abc import Collection
from math import ceil, prod
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.loading.quantized.float_codes import split_nibbles
from scheduler_proc.computing.loading.quantized.stored_linear import LinearWeight, StoredLinear

STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
LARGEST_CODE = 127.0
BYTES, FLOAT32 = (torch.uint8,), (torch.float32,)


class BitsAndBytes:
    """See `QuantizationMethod`. A module's tensors show their format."""

    endings = frozenset(
        {"weight", "SCB", "weight_format", "weight.absmax", "weight.quant_map", *STATES}
        | {"weight.nested_absmax", "weight.nested_quant_map"}
    )

    def __init__(self, config: HfConfig, modules: Collection[str]):
        pass

    def find_weight(self, linear: StoredLinear) -> LinearWeight:
        if not linear.has("SCB"):
            return _find_table_weight(linear)
        codes_OI = linear.tensor("weight", (torch.int8,))
        scale_O = linear.scale("SCB", FLOAT32, (len(codes_OI),))
        return LinearWeight(None, lambda: codes_OI.float() * scale_O[:, None] * (1 / LARGEST_CODE))


def _find_table_weight(linear: StoredLinear) -> LinearWeight:
    state = HfConfig(_read_state(linear), f"{linear.module}: quant_state")
    shape, size = state.pair("shape"), state.count("blocksize")
    num_values, num_blocks = prod(shape), ceil(prod(shape) / size)
    num_bytes = ceil(num_values / 2)
    bytes_B = linear.tensor("weight", BYTES, (num_bytes, 1), (1, num_bytes)).flatten()
    scale_K = _read_scales(linear, state, num_blocks)
    table = linear.scale("weight.quant_map", FLOAT32, (16,))

    def read() -> Tensor:
        codes = split_nibbles((bytes_B >> 4 | bytes_B << 4)[None]).flatten()[:num_values]
        values = functional.pad(table[codes.int()], (0, num_blocks * size - num_values)).view(num_blocks, size)
        return (values * scale_K[:, None]).flatten()[:num_values].view(shape)

    return LinearWeight(None, read)


def _read_state(linear: StoredLinear) -> dict[str, Any]:
    ending = next((ending for ending in STATES if linear.has(ending)), STATES[0])
    stored = linear.tensors.get(ending)
    size = 0 if stored is None else stored.numel()
    try:
        value: object = json.loads(bytes(linear.tensor(ending, BYTES, (size,)).tolist()))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise linear.error(ending, "is not a JSON object")
    return cast("dict[str, Any]", value)


def _read_scales(linear: StoredLinear, state: HfConfig, num_blocks: int) -> Tensor:
    """Returns the scale of each block, float32 [K]; they may be codes of a table, with scales and an offset."""
    if not linear.has("weight.nested_absmax"):
        return linear.scale("weight.absmax", FLOAT32, (num_blocks,))
    size = state.count("nested_blocksize")
    codes_K = linear.tensor("weight.absmax", BYTES, (num_blocks,))
    scale = linear.scale("weight.nested_absmax", FLOAT32, (ceil(num_blocks / size),))
    table = linear.scale("weight.nested_quant_map", FLOAT32, (256,))
    return table[codes_K.int()] * scale.repeat_interleave(size)[:num_blocks] + state.number("nested_offset")
