"""The specializations of `scaled_linear` that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.scaled_linear import multiply_scaled
from tests.kernels.gpu.cases.compile_case import CompileCase

_POINTERS = {"x": "*fp8e4nv:16", "weight": "*fp8e4nv:16", "scales": "*fp32:16", "x_scales": "*fp32", "bias": "*bf16"}
_SIZES = dict.fromkeys(("num_tokens", "num_outputs", "part_blocks", "out_stride"), "i32")

COMPILE_CASES = tuple(
    CompileCase(
        label=f"{'many' if has_many else 'few'} tokens, blocks of {block_inputs}, {out}",
        kernel=multiply_scaled,
        signature=_POINTERS | _SIZES | {"out": out, "num_inputs": "i32:16"},
        constants={"HAS_BIAS": out == "*bf16"},
        launch=launch_on(HOPPER, "scaled_linear", has_many, block_inputs),
        max_registers=255 if has_many else 168,
        has_wgmma=True,
        max_loop_stalls=2,  # loads of scales, which nothing waits for
    )
    for has_many, block_inputs, out in (
        *((has_many, 128, out) for has_many in (False, True) for out in ("*bf16", "*fp32")),
        *((has_many, block_inputs, "*bf16") for has_many in (False, True) for block_inputs in (32, 64)),
    )
)
