"""The specializations of `filter_min_p` that are compiled in tests."""

from kernels.gpu.filter_min_p import filter_min_p_kernel
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.compile_case import CompileCase
from tests.kernels.gpu.cases.model_shapes import VOCAB_SIZES

COMPILE_CASES = tuple(
    CompileCase(
        label=f"{vocab_size} tokens",
        kernel=filter_min_p_kernel,
        signature={"scores_ptr": "*fp32:16", "min_ps_ptr": "*fp32"},
        constants={"VOCAB": vocab_size},
        launch=launch_on(HOPPER, "filter_min_p", vocab_size),
        max_registers=96,
    )
    for vocab_size in VOCAB_SIZES
)
