"""The specializations of `add_biases` that are compiled in tests."""

from kernels.gpu.add_biases import add_biases_kernel
from tests.kernels.gpu.cases.pair_entries import CLAIM_CASE, GATHER_CASE, SUM_CASE, entry_case

COMPILE_CASES = (
    GATHER_CASE,
    CLAIM_CASE,
    SUM_CASE,
    entry_case(add_biases_kernel, {"before_ptr": "*fp32:16", "leaders_ptr": "*i32:16", "sums_ptr": "*fp64:16"}, {}),
)
