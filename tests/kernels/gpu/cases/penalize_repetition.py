"""The specializations of `penalize_repetition` that are compiled in tests."""

from kernels.gpu.penalize_repetition import penalize_repetition_kernel
from tests.kernels.gpu.cases.pair_entries import GATHER_CASE, entry_case

COMPILE_CASES = (
    GATHER_CASE,
    entry_case(penalize_repetition_kernel, {"before_ptr": "*fp32:16", "penalties_ptr": "*fp32:16"}, {}),
)
