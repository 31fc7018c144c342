"""The specializations of `store_hidden` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.store_hidden import store_rows
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32

_CASE = CompileCase(
    label="2,048",
    kernel=store_rows,
    signature={"hidden": "*bf16:16", "slots": "*i64:16", "kept": "*bf16:16", "size": "i32:16"},
    constants={},
    launch=launch_on(HOPPER, "store_hidden"),
    max_registers=32,
)
COMPILE_CASES = (_CASE, in_float32(_CASE))
