"""The specializations of `best_token` that are compiled in tests."""

import triton

from kernels.gpu.best_token import best_of_part_kernel, best_of_row_kernel
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.compile_case import CompileCase
from tests.kernels.gpu.cases.model_shapes import VOCAB_SIZES

DRAW_TYPES = {"temperatures_ptr": "*fp32:16", "seeds_ptr": "*i64", "positions_ptr": "*i64"}
UNUSED_TYPES = {"temperatures_ptr": "*fp32:16", "seeds_ptr": "*i32", "positions_ptr": "*i32"}
PART_TYPES = {"values_ptr": "*fp32:16", "tokens_ptr": "*i32:16"}


def part_cases(dtype: str, is_drawn: bool, has_logits: bool) -> tuple[CompileCase, ...]:
    """Returns the specializations of the first half for the vocabularies of all models."""
    operation = "greedy" if not is_drawn else "draw" if has_logits else "sample"
    return tuple(
        CompileCase(
            label=f"parts of {vocab_size} tokens",
            kernel=best_of_part_kernel,
            signature={"logits_ptr": f"*{dtype}:16"}
            | (DRAW_TYPES if is_drawn else UNUSED_TYPES)
            | PART_TYPES
            | {"row_stride": "i32" if vocab_size % 16 else "i32:16"},
            constants={"VOCAB": vocab_size, "IS_DRAWN": is_drawn, "HAS_LOGITS": has_logits},
            launch=launch_on(HOPPER, operation, vocab_size),
            max_registers=128 if is_drawn else 96,
        )
        for vocab_size in VOCAB_SIZES
    )


def row_cases() -> tuple[CompileCase, ...]:
    """Returns the specializations of the second half."""
    cases: list[CompileCase] = []
    by_head = triton.cdiv(max(VOCAB_SIZES), launch_on(HOPPER, "few_rows_linear", 0, 2)["BLOCK_O"])
    parts = [triton.cdiv(size, launch_on(HOPPER, "greedy", size)["BLOCK"]) for size in VOCAB_SIZES]
    for vocab_size, num_parts in (*zip(VOCAB_SIZES, parts, strict=True), (max(VOCAB_SIZES), by_head)):
        case = CompileCase(
            label=f"{num_parts} parts of {vocab_size} tokens",
            kernel=best_of_row_kernel,
            signature=PART_TYPES | {"out_ptr": "*i32:16"},
            constants={"NUM_PARTS": num_parts, "VOCAB": vocab_size},
            launch=launch_on(HOPPER, "best_of_row", num_parts),
            max_registers=64,
        )
        cases.append(case)
    return tuple(cases)
