"""The specializations of `expert_plain_linear` that are compiled in tests."""

from kernels.gpu.expert_plain_linear import multiply_experts
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32

_SIGNATURE = {
    "x": "*bf16:16",
    "weight": "*bf16:16",
    "bias": "*bf16",
    "ends": "*i32",
    "out": "*bf16:16",
    "num_experts": "i32",
    "num_inputs": "i32:16",
    "num_outputs": "i32:16",
}


def make_case(has_many_rows: bool) -> CompileCase:
    return CompileCase(
        label="many rows" if has_many_rows else "few rows",
        kernel=multiply_experts,
        signature=_SIGNATURE,
        constants={"HAS_BIAS": False, "BLOCK_X": 128},
        launch=launch_on(HOPPER, "expert_plain_linear", has_many_rows, 2),
        max_registers=168,
        has_wgmma=True,
        max_shared_bytes=113 << 10,
    )


COMPILE_CASES = tuple(
    case
    for has_many_rows in (False, True)
    for case in (
        make_case(has_many_rows),
        in_float32(
            make_case(has_many_rows),
            launch=launch_on(HOPPER, "expert_plain_linear", has_many_rows, 4),
            has_wgmma=False,
            max_registers=255,
        ),
    )
)
