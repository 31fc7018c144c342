"""The specializations of `sigmoid_gate` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.sigmoid_gate import gate_kernel
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32

_CASE = CompileCase(
    label="Qwen3-Next",
    kernel=gate_kernel,
    signature=dict.fromkeys(("values", "gate"), "*bf16:16") | {"values_stride": "i32:16", "gate_stride": "i32:16"},
    constants={"SIZE": 4096},
    launch=launch_on(HOPPER, "sigmoid_gate"),
    max_registers=40,
)
COMPILE_CASES = _CASE, in_float32(_CASE)
