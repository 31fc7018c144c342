"""The specializations of `gelu_mul` that are compiled in tests."""

from dataclasses import replace

from tests.kernels.gpu.cases.silu_mul import COMPILE_CASES as SILU_CASES

COMPILE_CASES = tuple(
    replace(case, label=f"{case.label}, {kind}", constants=constants)
    for case in SILU_CASES
    for kind in ("tanh", "exact")
    for constants in (case.constants | {"KIND": kind},)
)
