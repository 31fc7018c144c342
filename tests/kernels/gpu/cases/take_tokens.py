"""The specializations of `take_tokens` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.take_tokens import take_tokens_kernel
from tests.kernels.gpu.cases.compile_case import CompileCase

COMPILE_CASES = tuple(
    CompileCase(
        label=f"tokens sampled as {dtype}",
        kernel=take_tokens_kernel,
        signature={
            "token_ids_ptr": "*i32:16",
            "sources_ptr": "*i32:16",
            "sampled_ptr": f"*{dtype}:16",
            "num_rows": "i32",
        },
        constants={},
        launch=launch_on(HOPPER, "take_tokens"),
        max_registers=32,
    )
    for dtype in ("i32", "i64")
)
