"""The specializations of `allow_tokens` that are compiled in tests."""

from kernels.gpu.allow_tokens import fill_kernel
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.compile_case import CompileCase
from tests.kernels.gpu.cases.model_shapes import VOCAB_SIZES
from tests.kernels.gpu.cases.pair_entries import GATHER_CASE, SCATTER_CASE

COMPILE_CASES = (
    GATHER_CASE,
    SCATTER_CASE,
    *(
        CompileCase(
            label=f"rows of {vocab_size} tokens",
            kernel=fill_kernel,
            signature={"logits_ptr": "*fp32", "rows_ptr": "*i64:16"},
            constants={"VOCAB": vocab_size},
            launch=launch_on(HOPPER, "allow_tokens"),
            max_registers=32,
        )
        for vocab_size in VOCAB_SIZES
    ),
)
