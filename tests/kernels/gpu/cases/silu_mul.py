"""The specializations of `silu_mul` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.silu_mul import gate_mul_kernel
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32
from tests.kernels.gpu.cases.model_shapes import MODEL_SHAPES

_CASES = tuple(
    CompileCase(
        label=model,
        kernel=gate_mul_kernel,
        signature={"gate_up_ptr": "*bf16:16", "out_ptr": "*bf16:16"},
        constants={"SIZE": MODEL_SHAPES[model].mlp_size, "KIND": "silu", "ALPHA": 0.0, "LIMIT": 0.0},
        launch=launch_on(HOPPER, "silu_mul"),
        max_registers=40,
    )
    for model in ("Qwen3-0.6B", "Llama-3-8B", "Qwen3-14B")
)
COMPILE_CASES = _CASES + tuple(in_float32(case) for case in _CASES[:1])
