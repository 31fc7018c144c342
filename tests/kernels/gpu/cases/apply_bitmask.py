"""The specializations of `apply_bitmask` that are compiled in tests."""

from kernels.gpu.apply_bitmask import apply_bitmask_kernel
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.compile_case import CompileCase
from tests.kernels.gpu.cases.model_shapes import VOCAB_SIZES

COMPILE_CASES = tuple(
    CompileCase(
        label=f"rows of {vocab_size} tokens",
        kernel=apply_bitmask_kernel,
        signature={"logits_ptr": "*fp32", "rows_ptr": "*i64:16", "bitmask_ptr": "*i32:16"},
        constants={"VOCAB": vocab_size},
        launch=launch_on(HOPPER, "apply_bitmask"),
        max_registers=64,
    )
    for vocab_size in VOCAB_SIZES
)
