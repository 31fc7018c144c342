"""The specializations of `penalize_occurrence` that are compiled in tests."""

from kernels.gpu.penalize_occurrence import penalize_occurrence_kernel
from tests.kernels.gpu.cases.pair_entries import CLAIM_CASE, COUNT_CASE, GATHER_CASE, entry_case

COMPILE_CASES = (
    GATHER_CASE,
    CLAIM_CASE,
    COUNT_CASE,
    entry_case(
        penalize_occurrence_kernel,
        {
            "before_ptr": "*fp32:16",
            "leaders_ptr": "*i32:16",
            "counts_ptr": "*fp64:16",
            "frequency_ptr": "*fp32:16",
            "presence_ptr": "*fp32:16",
        },
        {},
    ),
)
