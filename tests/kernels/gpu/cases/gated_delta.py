"""The specializations of `gated_delta` that are compiled in tests."""

from kernels.gpu.gated_delta import carry, prepare, step
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32

KEY_SIZE = VALUE_SIZE = 128
"""As in all published models."""

MAX_SPILLS, MAX_FLOAT32_SPILLS = 256, 2048
"""With Triton 3.6; 3.9 spills at most 40 bytes in 16 bits. Operands of float32 products have two halves in registers."""

_STRIDES = {"qkv_stride": "i32:16", "gates_stride": "i32:16"}
_INPUTS = (
    dict.fromkeys(("qkv", "gates"), "*bf16:16")
    | dict.fromkeys(("rates", "biases"), "*fp32:16")
    | {"shortest": "fp32", "longest": "fp32", **_STRIDES}
)
_PREPARED = dict.fromkeys(("inverses", "scores", "logs", "query_scales", "key_scales"), "*fp32:16") | {
    "lens": "*i32:16",
    "num_rows": "i32",
    "num_decode": "i32",
}
_STATES = {"matrix": "*fp32:16", "sources": "*i32:16", "slots": "*i32:16", "out": "*bf16:16"}
_CONSTANTS = {
    "NUM_HEADS": 32,
    "NUM_KEY_HEADS": 16,
    "KEY_SIZE": KEY_SIZE,
    "VALUE_SIZE": VALUE_SIZE,
    "HAS_TILED_HEADS": False,
}
_STEP = CompileCase(
    label="Qwen3-Next, step",
    kernel=step,
    signature=_INPUTS | _STATES,
    constants=_CONSTANTS,
    launch=launch_on(HOPPER, "gated_delta", KEY_SIZE, VALUE_SIZE),
    max_registers=96,
)
_PREPARE = CompileCase(
    label="Qwen3-Next, prepare",
    kernel=prepare,
    signature=_INPUTS | _PREPARED,
    constants=_CONSTANTS | {"PRECISION": "bf16x3"},
    launch=launch_on(HOPPER, "gated_delta_prepare", KEY_SIZE),
    max_registers=255,
    max_spilled_bytes=MAX_SPILLS,
    has_wgmma=True,
)
_CARRY = CompileCase(
    label="Qwen3-Next, carry",
    kernel=carry,
    signature={"qkv": "*bf16:16", "qkv_stride": "i32:16"} | _PREPARED | _STATES,
    constants=_CONSTANTS | {"PRECISION": "bf16x3"},
    launch=launch_on(HOPPER, "gated_delta_chunks", KEY_SIZE),
    max_registers=255,
    max_spilled_bytes=MAX_SPILLS,
    has_wgmma=True,
)
COMPILE_CASES = (
    _STEP,
    _PREPARE,
    _CARRY,
    in_float32(_PREPARE, constants=_CONSTANTS | {"PRECISION": "tf32x3"}, max_spilled_bytes=MAX_FLOAT32_SPILLS),
    in_float32(
        _CARRY,
        constants=_CONSTANTS | {"PRECISION": "tf32x3"},
        max_spilled_bytes=MAX_FLOAT32_SPILLS,
    ),
)
