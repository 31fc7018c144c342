"""The specializations of `look_up_planes` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.look_up_planes import dequantize
from tests.kernels.gpu.cases.compile_case import CompileCase
from tests.kernels.gpu.cases.plane_forms import PLANES, signature_of

COMPILE_CASES = tuple(
    CompileCase(
        label=f"{form}, {'rows' if has_rows else 'neighbours'}",
        kernel=dequantize,
        signature=signature_of(planes)
        | {"rows": "*i32", "out": "*bf16:16", "num_inputs": "i32:16"}
        | dict.fromkeys(("first_output", "num_rows", "num_outputs"), "i32"),
        constants={"FORM": planes.form, "HAS_ROWS": has_rows},
        launch=launch_on(HOPPER, "look_up_planes"),
        max_registers=40,
    )
    for form, planes in PLANES.items()
    for has_rows in (False, True)
)
