"""The specializations of `mamba_scan` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.mamba_scan import carry, step
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32
from tests.kernels.gpu.cases.gated_delta import MAX_FLOAT32_SPILLS, MAX_SPILLS

SHAPES = {
    "Granite-4.0-H-Tiny": (48, 1, 64, 128),
    "Falcon-H1-1.5B": (48, 1, 64, 256),
    "Nemotron-H-8B": (128, 8, 64, 128),
}
"""Heads, groups, values per head, state size."""

_SIGNATURE = (
    dict.fromkeys(("xbc", "time", "out"), "*bf16:16")
    | dict.fromkeys(("rates", "biases", "skips", "matrix"), "*fp32:16")
    | dict.fromkeys(("slots", "sources"), "*i32:16")
    | {"shortest": "fp32", "longest": "fp32", "xbc_stride": "i32:16", "time_stride": "i32:16"}
)
_ROWS = {"lens": "*i32:16", "num_rows": "i32", "num_decode": "i32"}
_CONSTANTS = {
    model: dict(zip(("NUM_HEADS", "NUM_GROUPS", "VALUE_SIZE", "STATE_SIZE"), shape, strict=True))
    for model, shape in SHAPES.items()
}
_CARRIES = {
    model: CompileCase(
        label=f"{model}, carry",
        kernel=carry,
        signature=_SIGNATURE | _ROWS,
        constants=constants | {"PRECISION": "bf16x3"},
        launch=launch_on(HOPPER, "mamba_scan_chunks", constants["STATE_SIZE"]),
        max_registers=255,
        max_spilled_bytes=MAX_SPILLS,
        has_wgmma=True,
    )
    for model, constants in _CONSTANTS.items()
}
COMPILE_CASES = (
    *(
        CompileCase(
            label=f"{model}, step",
            kernel=step,
            signature=_SIGNATURE,
            constants=constants,
            launch=launch_on(HOPPER, "mamba_scan", constants["STATE_SIZE"], constants["VALUE_SIZE"]),
            max_registers=96,
        )
        for model, constants in _CONSTANTS.items()
    ),
    *_CARRIES.values(),
    in_float32(
        _CARRIES["Granite-4.0-H-Tiny"],
        constants=_CONSTANTS["Granite-4.0-H-Tiny"] | {"PRECISION": "tf32x3"},
        max_spilled_bytes=MAX_FLOAT32_SPILLS,
    ),
)
