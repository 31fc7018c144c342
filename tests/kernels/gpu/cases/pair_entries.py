"""The specializations of `pair_entries` that are compiled in tests."""

import triton

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.pair_entries import claim_kernel, gather_kernel, scatter_kernel, sum_kernel
from tests.kernels.gpu.cases.compile_case import CompileCase

ENTRY_TYPES = {"logits_ptr": "*fp32", "rows_ptr": "*i64:16", "ids_ptr": "*i32:16"}
COUNT_TYPES = {"num_entries": "i32", "vocab_size": "i32:16"}


def entry_case(kernel: triton.JITFunction, types: dict[str, str], constants: dict[str, bool]) -> CompileCase:
    """Returns the specialization of a kernel over entries; `types` are the types of its other parameters."""
    return CompileCase(
        label=f"{kernel.__name__} {constants or ''}".strip(),
        kernel=kernel,
        signature=ENTRY_TYPES | types | COUNT_TYPES,
        constants=constants,
        launch=launch_on(HOPPER, "pair_entries"),
        max_registers=48,
    )


SUM_TYPES = {"values_ptr": "*fp32:16", "leaders_ptr": "*i32:16", "sums_ptr": "*fp64:16"}
GATHER_CASE = entry_case(gather_kernel, {"before_ptr": "*fp32:16"}, {})
SCATTER_CASE = entry_case(scatter_kernel, {"values_ptr": "*fp32:16"}, {})
CLAIM_CASE = entry_case(claim_kernel, {}, {})
SUM_CASE = entry_case(sum_kernel, SUM_TYPES, {"HAS_VALUES": True})
COUNT_CASE = entry_case(sum_kernel, SUM_TYPES, {"HAS_VALUES": False})
