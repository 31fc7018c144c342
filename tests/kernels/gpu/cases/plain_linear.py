"""The specializations of `plain_linear` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.plain_linear import multiply
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32

_SIZES = dict.fromkeys(("num_tokens", "num_outputs", "part_blocks", "num_parts"), "i32")
_CASES = [
    CompileCase(
        label="outputs" if out == "*bf16" else "sums of parts",
        kernel=multiply,
        signature={"x": "*bf16:16", "weight": "*bf16:16", "bias": "*bf16", "out": out, "num_inputs": "i32:16"} | _SIZES,
        constants={"HAS_BIAS": out == "*bf16"},
        launch=launch_on(HOPPER, "plain_linear", 2),
        max_registers=255,
        has_wgmma=True,
    )
    for out in ("*bf16", "*fp32")
]
COMPILE_CASES = (
    *_CASES,
    *(in_float32(case, launch=launch_on(HOPPER, "plain_linear", 4), has_wgmma=False) for case in _CASES),
)
