"""The specializations of `planes_linear` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.planes_linear import add_parts, multiply_codes
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32
from tests.kernels.gpu.cases.plane_forms import PLANES, signature_of

_SIZES = dict.fromkeys(("num_tokens", "num_outputs", "num_spans", "spans_a_part", "out_stride"), "i32")
_WITH_TABLE = 232
"""Registers of forms with a table: a processor has 2 programs."""

_CASES = {
    form: CompileCase(
        label=form,
        kernel=multiply_codes,
        signature=signature_of(planes)
        | {"x": "*bf16:16", "bias": "*bf16", "out": "*fp32", "num_inputs": "i32:16"}
        | _SIZES,
        constants={"FORM": planes.form, "HAS_BIAS": False},
        launch=launch_on(HOPPER, "planes_linear", 2),
        max_registers=168 if not planes.form.has_table else _WITH_TABLE,
        has_wgmma=True,
    )
    for form, planes in PLANES.items()
}
_SUM = CompileCase(
    label="sum of parts",
    kernel=add_parts,
    signature={"sums": "*fp32:16", "bias": "*bf16", "out": "*bf16"}
    | dict.fromkeys(("num_tokens", "num_outputs", "num_parts", "out_stride"), "i32"),
    constants={"HAS_BIAS": True},
    launch=launch_on(HOPPER, "planes_linear_sum"),
    max_registers=32,
)
COMPILE_CASES = (
    *_CASES.values(),
    _SUM,
    in_float32(_CASES["Q4_K"], launch=launch_on(HOPPER, "planes_linear", 4), has_wgmma=False, max_registers=255),
)
