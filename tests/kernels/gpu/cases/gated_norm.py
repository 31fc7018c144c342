"""The specializations of `gated_norm` that are compiled in tests."""

from kernels.gpu.gated_norm import gated_norm_kernel
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32

_SHAPES = {"Qwen3-Next": (4096, 128, True), "Granite-4.0-H": (3072, 3072, False), "Nemotron-H-8B": (8192, 1024, False)}
_CASES = tuple(
    CompileCase(
        label=model,
        kernel=gated_norm_kernel,
        signature=dict.fromkeys(("values", "gate", "weight"), "*bf16:16")
        | {"eps": "fp32", "values_stride": "i32:16", "gate_stride": "i32:16"},
        constants={
            "SIZE": size,
            "GROUP_SIZE": group_size,
            "HAS_WEIGHT": True,
            "HAS_ONE_WEIGHT": norms_first,
            "NORMS_FIRST": norms_first,
        },
        launch=launch_on(HOPPER, "gated_norm", group_size),
        max_registers=96,
    )
    for model, (size, group_size, norms_first) in _SHAPES.items()
)
COMPILE_CASES = _CASES + tuple(in_float32(case) for case in _CASES[:1])
