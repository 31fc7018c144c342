"""The specializations of `swiglu_oai` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.silu_mul import gate_mul_kernel
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32

_CASE = CompileCase(
    label="gpt-oss",
    kernel=gate_mul_kernel,
    signature={"gate_up_ptr": "*bf16:16", "out_ptr": "*bf16:16"},
    constants={"SIZE": 2880, "KIND": "swiglu_oai", "ALPHA": 1.702, "LIMIT": 7.0},
    launch=launch_on(HOPPER, "silu_mul"),
    max_registers=40,
)
COMPILE_CASES = (_CASE, in_float32(_CASE))
