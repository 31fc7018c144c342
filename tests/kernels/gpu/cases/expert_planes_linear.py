"""The specializations of `expert_planes_linear` that are compiled in tests."""

from kernels.gpu.expert_planes_linear import multiply_expert_codes
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.compile_case import CompileCase
from tests.kernels.gpu.cases.plane_forms import PLANES, signature_of

_SIGNATURE = {
    "x": "*bf16:16",
    "bias": "*bf16",
    "ends": "*i32",
    "out": "*bf16:16",
    "num_experts": "i32",
    "num_inputs": "i32:16",
    "num_outputs": "i32:16",
    "num_spans": "i32",
}

COMPILE_CASES = tuple(
    CompileCase(
        label=f"{form}, {'many' if has_many_rows else 'few'} rows",
        kernel=multiply_expert_codes,
        signature=signature_of(PLANES[form]) | _SIGNATURE,
        constants={"FORM": PLANES[form].form, "HAS_BIAS": form == "MXFP4", "BLOCK_X": 128},
        launch=launch_on(HOPPER, "expert_planes_linear", has_many_rows, PLANES[form].form.looks_up, 2),
        max_registers=255,
        has_wgmma=True,
    )
    for form in ("Q4_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4")
    for has_many_rows in (False, True)
)
