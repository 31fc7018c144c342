"""How the kernels of `state_matrices.py` are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.state_matrices import StateForm, carry, prepare, step
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32

_TOKENS = {"inputs": "*bf16:16", "input_stride": "i32:16"}
_GATES = (
    dict.fromkeys(("betas", "times"), "*bf16:16")
    | dict.fromkeys(("rates", "biases"), "*fp32:16")
    | {"shortest": "fp32", "longest": "fp32", "time_stride": "i32:16"}
)
_PREPARED = dict.fromkeys(("inverses", "scores", "logs", "query_factors", "key_factors"), "*fp32:16") | {
    "lens": "*i32:16",
    "num_rows": "i32",
    "num_decode": "i32",
}
_STORED = dict.fromkeys(("skips", "states"), "*fp32:16") | dict.fromkeys(("slots", "sources"), "*i32:16")
_STORED |= {"out": "*bf16:16"}


def cases_of(model: str, form: StateForm) -> tuple[CompileCase, ...]:
    """Returns those of the step, the preparation and the carrying; Triton 3.6 spills more than 3.9."""
    constants = {"FORM": form, "PRECISION": "bf16x3"}
    return (
        *(
            CompileCase(
                label=f"{model}, step{'s of prompts' if has_lens else ''}",
                kernel=step,
                signature=_TOKENS | _GATES | _STORED | {"lens": "*i32"},
                constants={"FORM": form, "HAS_LENS": has_lens},
                launch=launch_on(HOPPER, "state_step", form.key_size, form.value_size),
                max_registers=96,
            )
            for has_lens in (False, True)
        ),
        CompileCase(
            label=f"{model}, prepare",
            kernel=prepare,
            signature=_TOKENS | _GATES | _PREPARED,
            constants=constants,
            launch=launch_on(HOPPER, "state_prepare", form.key_size),
            max_registers=255,
            has_wgmma=True,
            max_spilled_bytes=256,
        ),
        CompileCase(
            label=f"{model}, carry",
            kernel=carry,
            signature=_TOKENS | _PREPARED | _STORED,
            constants=constants,
            launch=launch_on(HOPPER, "state_carry", form.key_size),
            max_registers=255,
            has_wgmma=True,
            max_spilled_bytes=256,
        ),
    )


def chunks_in_float32(cases: tuple[CompileCase, ...]) -> tuple[CompileCase, ...]:
    """Operands of such products have two halves in registers."""
    return tuple(
        in_float32(case, constants={**case.constants, "PRECISION": "tf32x3"}, max_spilled_bytes=2048)
        for case in cases[2:]
    )
