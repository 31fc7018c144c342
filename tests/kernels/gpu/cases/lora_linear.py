"""The specializations of `lora_linear` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.lora_linear import expand, shrink
from tests.kernels.gpu.cases.compile_case import MAX_ADA_BYTES, CompileCase, in_float32

COLUMNS = {"order": "*i64", "starts": "*i64", "ranks": "*i32"}
SHRINK = {"x": "*bf16:16", "a": "*bf16:16", "scales": "*fp32", **COLUMNS, "u": "*bf16:16", "num_inputs": "i32:16"}
EXPAND = {"u": "*bf16:16", "b": "*bf16:16", "ends": "*i32", **COLUMNS, "out": "*bf16:16", "num_outputs": "i32:16"}


def make_cases(has_many_tokens: bool, itemsize: int) -> tuple[CompileCase, CompileCase]:
    label, sizes = "many tokens" if has_many_tokens else "few tokens", {"NUM_SEGMENTS": 3, "MAX_RANK": 64}
    shrinking = launch_on(HOPPER, "lora_shrink", has_many_tokens, 64, itemsize)
    expanding = launch_on(HOPPER, "lora_expand", has_many_tokens, itemsize)
    return (
        CompileCase(f"A, {label}", shrink, SHRINK, sizes, 168, shrinking, max_shared_bytes=MAX_ADA_BYTES),
        CompileCase(f"B, {label}", expand, EXPAND, sizes, 168, expanding),
    )


COMPILE_CASES = tuple(
    case
    for has_many_tokens in (False, True)
    for case in (
        *make_cases(has_many_tokens, 2),
        *(in_float32(each, max_registers=255) for each in make_cases(has_many_tokens, 4)),
    )
)
