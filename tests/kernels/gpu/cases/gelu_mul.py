"""The specializations of `gelu_mul` that are compiled in tests."""

from dataclasses import replace

from tests.kernels.gpu.cases.silu_mul import COMPILE_CASES as SILU_CASES

COMPILE_CASES = tuple(
    replace(case, label=f"{case.label}, {'tanh' if is_tanh else 'exact'}", constants=constants)
    for case in SILU_CASES
    for is_tanh in (True, False)
    for constants in (case.constants | {"IS_GELU": True, "IS_TANH": is_tanh},)
)
