"""Makes products of float32 in Triton's interpreter as inexact as tensor cores make them.

The interpreter multiplies float32 exactly whatever `input_precision` is. Here "tf32" rounds both operands to the 10
bits of TF32, and "tf32x3" adds three such products of the operands' upper and lower halves, as Triton compiles them.
"bf16x3", which the interpreter refuses, adds three products of halves in bfloat16. This does not model how a tensor
core orders and rounds the sum of a product.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

DROPPED_BITS = {ir.INPUT_PRECISION.TF32: 13, ir.INPUT_PRECISION.TF32x3: 13, ir.INPUT_PRECISION.BF16x3: 16}


def make_tf32_right() -> None:
    """From now on products of float32 have the precision that is asked for; a second call changes nothing."""
    if getattr(InterpreterBuilder, "is_tf32_right", False):
        return
    InterpreterBuilder.is_tf32_right = True
    InterpreterBuilder.create_dot = _with_precision(InterpreterBuilder.create_dot)
    builder: Any = interpreter.interpreter_builder
    precisions = (*builder.options.allowed_dot_input_precisions, "bf16x3")
    builder.options = replace(builder.options, allowed_dot_input_precisions=precisions)


def round_to(values: np.ndarray, num_dropped: int) -> np.ndarray:
    """Returns values with fewer bits: to nearest, ties away from zero; infinity and NaN stay."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + (1 << (num_dropped - 1))) & np.uint32(-(1 << num_dropped) & 0xFFFFFFFF)).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


def split(handle: TensorHandle, num_dropped: int) -> tuple[TensorHandle, TensorHandle]:
    """Returns the upper and the lower half; together they have twice the bits of TF32 or bfloat16, or nearly."""
    upper = round_to(handle.data, num_dropped)
    lower = round_to(np.where(np.isfinite(upper), handle.data - upper, 0.0), num_dropped)
    return TensorHandle(upper, tl.float32), TensorHandle(lower, tl.float32)


def _with_precision(method: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    def apply(
        self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, sums: TensorHandle, precision: Any, *rest: Any
    ) -> TensorHandle:
        is_float32 = a.dtype.scalar == b.dtype.scalar == tl.float32
        if not is_float32 or precision == ir.INPUT_PRECISION.IEEE:
            return method(self, a, b, sums, precision, *rest)
        num_dropped = DROPPED_BITS[precision]
        (a_upper, a_lower), (b_upper, b_lower) = split(a, num_dropped), split(b, num_dropped)
        if precision != ir.INPUT_PRECISION.TF32:
            zeros = TensorHandle(np.zeros_like(sums.data), sums.dtype)
            small = method(self, a_lower, b_upper, zeros, precision, *rest)
            small = method(self, a_upper, b_lower, small, precision, *rest)
            sums = TensorHandle(sums.data + np.where(np.isnan(small.data), 0.0, small.data), sums.dtype)
        return method(self, a_upper, b_upper, sums, precision, *rest)

    return apply
