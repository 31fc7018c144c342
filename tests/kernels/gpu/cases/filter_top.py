"""The specializations of `filter_top` that are compiled in tests."""

from kernels.gpu.filter_top import filter_top_kernel
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.compile_case import CompileCase
from tests.kernels.gpu.cases.model_shapes import VOCAB_SIZES

COMPILE_CASES = tuple(
    CompileCase(
        label=f"{vocab_size} tokens",
        kernel=filter_top_kernel,
        signature={"scores_ptr": "*fp32:16", "top_ks_ptr": "*i64", "top_ps_ptr": "*fp32"},
        constants={"VOCAB": vocab_size},
        launch=launch_on(HOPPER, "filter_top", vocab_size),
        max_registers=128,
    )
    for vocab_size in VOCAB_SIZES
)
