"""The specializations of `layer_norm` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.norms import norm_kernel
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32
from tests.kernels.gpu.cases.model_shapes import MODEL_SHAPES

_CASES = tuple(
    CompileCase(
        label=f"GPT-2 124M, {'with' if has_update else 'without'} update",
        kernel=norm_kernel,
        signature=dict.fromkeys(("x_ptr", "update_ptr", "weight_ptr", "bias_ptr", "out_ptr"), "*bf16:16")
        | {"eps": "fp32"},
        constants=dict.fromkeys(("SIZE", "STRIDE"), MODEL_SHAPES["GPT-2 124M"].embedding_size)
        | {"HAS_UPDATE": has_update, "IS_CENTERED": True},
        launch=launch_on(HOPPER, "layer_norm", MODEL_SHAPES["GPT-2 124M"].embedding_size),
        max_registers=64,
    )
    for has_update in (True, False)
)
COMPILE_CASES = _CASES + tuple(in_float32(case) for case in _CASES[:1])
