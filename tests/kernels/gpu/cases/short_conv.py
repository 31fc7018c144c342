"""The specializations of `short_conv` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.short_conv import convolve
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32

_SHAPES = {
    "Qwen3-Next": (8192, 4, False, False),
    "LFM2": (2048, 3, False, True),
    "Granite-4.0-H": (3328, 4, True, False),
}
_CASES = tuple(
    CompileCase(
        label=f"{model}, {'decode' if is_decode else 'prefill'}",
        kernel=convolve,
        signature=dict.fromkeys(("input", "weight", "bias", "tail", "out"), "*bf16:16")
        | dict.fromkeys(("slots", "sources", "lens"), "*i32:16")
        | {"stride": "i32:16", "num_rows": "i32", "num_decode": "i32"},
        constants=dict(zip(("NUM_CHANNELS", "NUM_TAPS", "HAS_BIAS", "IS_GATED"), shape, strict=True))
        | {"IS_DECODE": is_decode},
        launch=launch_on(HOPPER, "short_conv", is_decode),
        max_registers=144,
    )
    for model, shape in _SHAPES.items()
    for is_decode in (True, False)
)
COMPILE_CASES = _CASES + tuple(in_float32(case) for case in _CASES[:2])
