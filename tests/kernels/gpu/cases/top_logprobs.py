"""The specializations of `top_logprobs` that are compiled in tests."""

import triton

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.top_logprobs import USUAL_TOP, part_keys_kernel, part_sums_kernel, row_top_kernel
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32
from tests.kernels.gpu.cases.model_shapes import VOCAB_SIZES

LOGITS_TYPES = {"logits_ptr": "*bf16:16"}
SUMS_TYPES = {"maxima_ptr": "*fp32", "sums_ptr": "*fp32", "keys_ptr": "*i64:16", "num_top": "i32"}
OUT_TYPES = {"ids_ptr": "*i32", "logprobs_ptr": "*fp32:16", "top_ids_ptr": "*i32:16", "top_logprobs_ptr": "*fp32:16"}


def _cases(vocab_size: int) -> tuple[CompileCase, ...]:
    block = launch_on(HOPPER, "top_logprobs", vocab_size)
    num_parts = triton.cdiv(vocab_size, block["BLOCK"])
    sizes = {"VOCAB": vocab_size, "NUM_PARTS": num_parts, "PARTS_BLOCK": triton.next_power_of_2(num_parts)}
    logits = LOGITS_TYPES | {"row_stride": "i32" if vocab_size % 16 else "i32:16"}
    sums = {name: SUMS_TYPES[name] for name in ("maxima_ptr", "sums_ptr")}
    return (
        CompileCase(f"sums of {vocab_size}", part_sums_kernel, logits | sums, {"VOCAB": vocab_size}, 64, block),
        CompileCase(f"keys of {vocab_size}", part_keys_kernel, logits | SUMS_TYPES, sizes, 128, block),
        CompileCase(
            f"top 20 of {vocab_size}",
            row_top_kernel,
            logits | SUMS_TYPES | OUT_TYPES,
            sizes,
            96,
            launch_on(HOPPER, "top_logprobs_row", num_parts * USUAL_TOP),
        ),
    )


_CASES = tuple(case for vocab_size in VOCAB_SIZES for case in _cases(vocab_size))
COMPILE_CASES = _CASES + tuple(in_float32(case) for case in _cases(VOCAB_SIZES[-1]))
