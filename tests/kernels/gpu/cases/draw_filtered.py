"""The specializations of `draw_filtered` that are compiled in tests."""

import triton

from kernels.gpu.draw_filtered import candidates_kernel, draw_row_kernel
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32
from tests.kernels.gpu.cases.model_shapes import VOCAB_SIZES

_ROWS = {"rows_ptr": "*i64:16", "temperatures_ptr": "*fp32:16"}
_DRAWS = {
    **dict.fromkeys(("seeds_ptr", "positions_ptr", "top_ks_ptr"), "*i64:16"),
    **dict.fromkeys(("top_ps_ptr", "min_ps_ptr"), "*fp32:16"),
}
_FOUND = dict.fromkeys(("candidates_ptr", "maxima_ptr", "sums_ptr", "counts_ptr", "floors_ptr"), "*fp32") | {
    "candidates_ptr": "*fp32:16",
    "tokens_ptr": "*i32:16",
}


def _cases(vocab_size: int) -> tuple[CompileCase, CompileCase]:
    launch = launch_on(HOPPER, "draw_filtered", vocab_size)
    num_parts = triton.cdiv(vocab_size, launch["BLOCK"])
    row_launch = launch_on(HOPPER, "draw_filtered_row", num_parts * launch["CANDIDATES"])
    logits = {"logits_ptr": "*bf16:16", **_ROWS, "row_stride": "i32" if vocab_size % 16 else "i32:16"}
    sizes = {"VOCAB": vocab_size, "NUM_PARTS": num_parts, "PARTS_BLOCK": triton.next_power_of_2(num_parts)}
    sizes["CANDIDATES"] = launch["CANDIDATES"]
    return (
        CompileCase(f"parts of {vocab_size}", candidates_kernel, logits | _FOUND, {"VOCAB": vocab_size}, 128, launch),
        CompileCase(
            f"rows of {vocab_size}",
            draw_row_kernel,
            logits | _DRAWS | _FOUND | {"out_ptr": "*i32:16"},
            sizes,
            128,
            row_launch,
            max_spilled_bytes=16,  # by Triton 3.6, which takes 168 registers if it may
        ),
    )


_CASES = tuple(case for vocab_size in VOCAB_SIZES for case in _cases(vocab_size))
COMPILE_CASES = _CASES + tuple(in_float32(case, max_spilled_bytes=16) for case in _cases(VOCAB_SIZES[-1]))
