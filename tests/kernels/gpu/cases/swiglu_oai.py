"""The specializations of `swiglu_oai` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.swiglu_oai import swiglu_kernel
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32

_CASE = CompileCase(
    label="gpt-oss",
    kernel=swiglu_kernel,
    signature={"gate_up_ptr": "*bf16:16", "out_ptr": "*bf16:16"},
    constants={"SIZE": 2880, "ALPHA": 1.702, "LIMIT": 7.0},
    launch=launch_on(HOPPER, "silu_mul"),
    max_registers=40,
)
COMPILE_CASES = (_CASE, in_float32(_CASE))
