"""The specializations of `planes_linear` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.plane_codes import constants_of
from kernels.gpu.planes_linear import TILE_TOKENS, add_parts, multiply_codes
from tests.kernels.gpu.cases.compile_case import CompileCase
from tests.kernels.gpu.cases.plane_forms import PLANES, signature_of

_SIZES = dict.fromkeys(("num_tokens", "num_outputs", "num_spans", "spans_a_part", "out_stride"), "i32")
_CASES = tuple(
    CompileCase(
        label=f"{form}, {num_tokens} tokens",
        kernel=multiply_codes,
        signature=signature_of(planes)
        | {"x": "*bf16:16", "bias": "*bf16", "out": "*fp32", "num_inputs": "i32:16"}
        | _SIZES,
        constants=constants_of(planes) | {"HAS_BIAS": False},
        launch=launch_on(HOPPER, "planes_linear", num_tokens, 2),
        max_registers=255,
        has_wgmma=True,
    )
    for form, planes in PLANES.items()
    for num_tokens in TILE_TOKENS
)
_SUM = CompileCase(
    label="sum of parts",
    kernel=add_parts,
    signature={"sums": "*fp32:16", "bias": "*bf16", "out": "*bf16"}
    | dict.fromkeys(("num_tokens", "num_outputs", "num_parts", "out_stride"), "i32"),
    constants={"HAS_BIAS": True},
    launch=launch_on(HOPPER, "planes_linear_sum"),
    max_registers=32,
)
COMPILE_CASES = (*_CASES, _SUM)
