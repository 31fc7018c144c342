"""The specializations of `route_tokens` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.route_tokens import choose_experts, place_rows
from tests.kernels.gpu.cases.compile_case import CompileCase

_POINTERS = {
    "logits": "*bf16",
    "bias": "*fp32",
    "scales": "*fp32",
    "shares": "*fp32",
    "chosen": "*i32",
    "scale": "fp32",
}
_SOFTMAX = {
    "HAS_BIAS": False,
    "HAS_SCALES": False,
    "IS_SIGMOID": False,
    "IS_RENORMALIZED": True,
    "NUM_CHOSEN": 8,
    "NUM_GROUPS": 1,
    "NUM_CHOSEN_GROUPS": 1,
    "NUM_BEST": 2,
}
_GROUPS = {"HAS_BIAS": True, "IS_SIGMOID": True, "NUM_GROUPS": 8, "NUM_CHOSEN_GROUPS": 4}

COMPILE_CASES = (
    *(
        CompileCase(
            label=label,
            kernel=choose_experts,
            signature=_POINTERS | {"num_experts": "i32"},
            constants=_SOFTMAX | changes,
            launch=launch_on(HOPPER, "choose_experts", num_experts, 8),
            max_registers=64,
        )
        for label, num_experts, changes in (
            ("128 experts", 128, {"HAS_SCALES": True}),
            ("256 experts in groups", 256, _GROUPS),
        )
    ),
    CompileCase(
        label="rows",
        kernel=place_rows,
        signature=dict.fromkeys(("chosen", "rows", "tokens", "ends"), "*i32")
        | dict.fromkeys(("num_rows", "num_chosen"), "i32"),
        constants={},
        launch=launch_on(HOPPER, "place_rows"),
        max_registers=64,
    ),
)
