"""The specializations of `quantize_rows` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.quantize_rows import quantize_row
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32

_CASES = tuple(
    CompileCase(
        label=f"{size} inputs",
        kernel=quantize_row,
        signature={"x": "*bf16:16", "codes": "*fp8e4nv:16", "scales": "*fp32"},
        constants={"NUM_INPUTS": size, "NUM_PADDED": -(-size // 256) * 256, "MAX_CODE": 448.0},
        launch=launch_on(HOPPER, "quantize_rows", -(-size // 256) * 256),
        max_registers=128,
    )
    for size in (576, 4096, 28672)
)
COMPILE_CASES = (*_CASES, in_float32(_CASES[0]))
