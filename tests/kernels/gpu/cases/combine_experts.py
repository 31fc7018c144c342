"""The specializations of `combine_experts` that are compiled in tests."""

from kernels.gpu.combine_experts import sum_outputs
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32

_SIGNATURE = {"shares": "*fp32", "rows": "*i32", "gates": "*bf16", "size": "i32:16"} | dict.fromkeys(
    ("x", "shared", "out"), "*bf16:16"
)
_CASES = tuple(
    CompileCase(
        label=label,
        kernel=sum_outputs,
        signature=_SIGNATURE,
        constants={"NUM_CHOSEN": 8, "HAS_SHARED": has_shared, "HAS_GATE": has_gate},
        launch=launch_on(HOPPER, "combine_experts"),
        max_registers=48,
    )
    for label, has_shared, has_gate in (("experts", False, False), ("shared", True, False), ("gate", True, True))
)
COMPILE_CASES = (*_CASES, in_float32(_CASES[-1]))
