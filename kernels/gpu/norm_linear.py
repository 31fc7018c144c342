"""The Triton kernel of `norm_linear`: a program computes some outputs of all tokens, and reads its weights once.

The norm's factor of a token is known only when all its inputs have been read. It is the same for all of them, so the
product is scaled by it at the end.

Shape legend: T tokens, I inputs, O outputs of the weight, F outputs of the operation; M tokens, N outputs and K inputs
of a block.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.compile_case import CompileCase, in_float32
from kernels.gpu.key_blocks import PRECISION
from kernels.gpu.launch_table import HOPPER, find_launch, launch_on
from kernels.gpu.model_shapes import MODEL_SHAPES


def norm_linear(
    x_TI: Tensor,
    update_TI: Tensor | None,
    norm_weight_I: Tensor,
    eps: float,
    weight_OI: Tensor,
    bias_O: Tensor | None,
    is_gated: bool,
) -> tuple[Tensor, Tensor]:
    num_tokens, num_inputs = x_TI.shape
    num_outputs = len(weight_OI) // 2 if is_gated else len(weight_OI)
    for tensor in (x_TI, update_TI, norm_weight_I, weight_OI, bias_O):
        assert tensor is None or tensor.is_contiguous()
    out_TF = x_TI.new_empty(num_tokens, num_outputs)
    residual_TI = x_TI if update_TI is None else torch.empty_like(x_TI)
    launch = find_launch("norm_linear", num_outputs, x_TI.dtype.itemsize)
    norm_linear_kernel[(triton.cdiv(num_outputs, launch["BLOCK_N"]),)](
        x_TI,
        x_TI if update_TI is None else update_TI,
        norm_weight_I,
        weight_OI,
        weight_OI if bias_O is None else bias_O,
        residual_TI,
        out_TF,
        num_tokens,
        eps,
        NUM_INPUTS=num_inputs,
        NUM_OUTPUTS=num_outputs,
        HAS_UPDATE=update_TI is not None,
        HAS_BIAS=bias_O is not None,
        IS_GATED=is_gated,
        **launch,
    )
    return residual_TI, out_TF


@triton.jit(do_not_specialize=["num_tokens"])
def norm_linear_kernel(
    x_ptr,
    update_ptr,
    norm_weight_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    num_tokens,
    eps,
    NUM_INPUTS: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    HAS_UPDATE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_GATED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    number_type = x_ptr.dtype.element_ty
    token_M = tl.arange(0, BLOCK_M)
    is_token_M = token_M < num_tokens
    # To other memory than x, and by one program: those that come later read x and the update again.
    is_stored_M = token_M < tl.where(tl.program_id(0) == 0, num_tokens, 0)
    output_N = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_output_N = output_N < NUM_OUTPUTS
    # A weight may have more than 2^31 elements.
    weight_row_N = output_N.to(tl.int64) * NUM_INPUTS
    squares_M = tl.zeros([BLOCK_M], tl.float32)
    acc_MN = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    acc_up_MN = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, NUM_INPUTS, BLOCK_K):
        input_K = first + tl.arange(0, BLOCK_K)
        is_input_K = input_K < NUM_INPUTS
        place_MK = token_M[:, None] * NUM_INPUTS + input_K[None, :]
        mask_MK = is_token_M[:, None] & is_input_K[None, :]
        x_MK = tl.load(x_ptr + place_MK, mask=mask_MK, other=0.0)
        if HAS_UPDATE:
            update_MK = tl.load(update_ptr + place_MK, mask=mask_MK, other=0.0)
            x_MK = (x_MK.to(tl.float32) + update_MK.to(tl.float32)).to(number_type)
            tl.store(residual_ptr + place_MK, x_MK, mask=is_stored_M[:, None] & is_input_K[None, :])
        wide_MK = x_MK.to(tl.float32)
        squares_M += tl.sum(wide_MK * wide_MK, 1)
        norm_weight_K = tl.load(norm_weight_ptr + input_K, mask=is_input_K, other=0.0).to(tl.float32)
        x_MK = (wide_MK * norm_weight_K[None, :]).to(number_type)
        weight_ptr_KN = weight_ptr + weight_row_N[None, :] + input_K[:, None]
        mask_KN = is_input_K[:, None] & is_output_N[None, :]
        acc_MN = tl.dot(x_MK, tl.load(weight_ptr_KN, mask=mask_KN, other=0.0), acc_MN, input_precision=PRECISION)
        if IS_GATED:
            up_KN = tl.load(weight_ptr_KN + NUM_OUTPUTS * NUM_INPUTS, mask=mask_KN, other=0.0)
            acc_up_MN = tl.dot(x_MK, up_KN, acc_up_MN, input_precision=PRECISION)
    scale_M1 = tl.rsqrt(squares_M / NUM_INPUTS + eps)[:, None]
    out_MN = _finish(acc_MN * scale_M1, bias_ptr + output_N, is_output_N, HAS_BIAS, number_type)
    if IS_GATED:
        up_MN = _finish(acc_up_MN * scale_M1, bias_ptr + NUM_OUTPUTS + output_N, is_output_N, HAS_BIAS, number_type)
        # Rounded as by `silu_mul`.
        out_MN = (out_MN / (1.0 + tl.exp(-out_MN))).to(number_type).to(tl.float32) * up_MN
    place_MN = token_M[:, None] * NUM_OUTPUTS + output_N[None, :]
    tl.store(out_ptr + place_MN, out_MN.to(number_type), mask=is_token_M[:, None] & is_output_N[None, :])


@triton.jit
def _finish(sum_MN, bias_ptr_N, is_output_N, HAS_BIAS: tl.constexpr, number_type: tl.constexpr):
    """Returns float32 that is rounded as the outputs of a linear layer are."""
    if HAS_BIAS:
        sum_MN += tl.load(bias_ptr_N, mask=is_output_N, other=0.0).to(tl.float32)[None, :]
    return sum_MN.to(number_type).to(tl.float32)


_POINTERS = ("x_ptr", "update_ptr", "norm_weight_ptr", "weight_ptr", "bias_ptr", "residual_ptr", "out_ptr")


def _case(model: str, is_gated: bool) -> CompileCase:
    shape = MODEL_SHAPES[model]
    num_heads = shape.num_heads + 2 * shape.num_kv_heads
    num_outputs = shape.mlp_size if is_gated else num_heads * shape.head_dim
    return CompileCase(
        label=f"{model}, {'gate and up' if is_gated else 'query, key, value'}",
        kernel=norm_linear_kernel,
        signature=dict.fromkeys(_POINTERS, "*bf16:16") | {"num_tokens": "i32", "eps": "fp32"},
        constants={
            "NUM_INPUTS": shape.embedding_size,
            "NUM_OUTPUTS": num_outputs,
            "HAS_UPDATE": True,
            "HAS_BIAS": not is_gated,
            "IS_GATED": is_gated,
        },
        launch=launch_on(HOPPER, "norm_linear", num_outputs, 2),
        max_registers=128,
    )


_CASES = _case("Qwen3-0.6B", True), _case("Qwen3-0.6B", False), _case("Llama-3-8B", True)
COMPILE_CASES = (
    *_CASES,
    in_float32(_CASES[0], launch=launch_on(HOPPER, "norm_linear", _CASES[0].constants["NUM_OUTPUTS"], 4)),
)
