"""The specializations of `gather_rows` that are compiled in tests."""

from kernels.gpu.gather_rows import copy_rows
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32

_CASE = CompileCase(
    label="2,048",
    kernel=copy_rows,
    signature={"x": "*bf16:16", "tokens": "*i32", "out": "*bf16:16", "size": "i32:16"},
    constants={},
    launch=launch_on(HOPPER, "gather_rows"),
    max_registers=32,
)
COMPILE_CASES = (_CASE, in_float32(_CASE))
