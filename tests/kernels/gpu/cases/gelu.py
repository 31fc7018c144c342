"""The specializations of `gelu` that are compiled in tests."""

from kernels.gpu.gelu import gelu_kernel
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32
from tests.kernels.gpu.cases.model_shapes import MODEL_SHAPES

_CASES = tuple(
    CompileCase(
        label=f"GPT-2 124M, {'tanh' if is_tanh else 'exact'}",
        kernel=gelu_kernel,
        signature={"x_ptr": "*bf16:16", "out_ptr": "*bf16:16"},
        constants={"SIZE": MODEL_SHAPES["GPT-2 124M"].mlp_size, "IS_TANH": is_tanh},
        launch=launch_on(HOPPER, "gelu"),
        max_registers=40,
    )
    for is_tanh in (True, False)
)
COMPILE_CASES = _CASES + tuple(in_float32(case) for case in _CASES)
