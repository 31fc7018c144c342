"""Makes Triton's interpreter right for bfloat16, and for casts to fp8.

The interpreter holds bfloat16 as numpy's uint16. Loads, stores, moves and selections of it are right; arithmetic,
comparisons and products work on the bit patterns without a word, and a cast to it cuts bits off. Here operands are
widened to float32 and results are rounded to nearest even, as a GPU does. Reductions of bfloat16 are refused: a kernel
sums in float32.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

ARITHMETIC = ("binary_op", "unary_op", "create_fma", "create_fabs", "create_erf", "create_rsqrt")
CASTS = ("create_si_to_fp", "create_ui_to_fp", "create_fp_to_si", "create_fp_to_ui", "create_fp_ext", "create_fp_trunc")
QUIET_NAN = 0x7FC0


def make_bf16_right() -> None:
    """From now on bfloat16 is right in this process; a second call changes nothing."""
    if getattr(InterpreterBuilder, "is_bf16_right", False):
        return
    InterpreterBuilder.is_bf16_right = True
    for name in ARITHMETIC:
        setattr(InterpreterBuilder, name, _in_float32(getattr(InterpreterBuilder, name)))
    InterpreterBuilder.create_dot = _dot_in_float32(InterpreterBuilder.create_dot)
    InterpreterBuilder.cast_impl = _cast_through_float32(InterpreterBuilder.cast_impl)
    InterpreterBuilder.create_fp_to_fp = _cast_through_float32(InterpreterBuilder.create_fp_to_fp)
    operations: Any = interpreter.ReduceScanOpInterface
    operations.check_tensor = _refuse_bf16(operations.check_tensor)


def is_bf16(value: object) -> bool:
    return isinstance(value, TensorHandle) and value.dtype.scalar == tl.bfloat16


def widen(handle: TensorHandle) -> TensorHandle:
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def round_to_bf16(handle: TensorHandle) -> TensorHandle:
    """To nearest, ties to even."""
    values = np.ascontiguousarray(handle.data, dtype=np.float32)
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return TensorHandle(np.where(np.isnan(values), np.uint16(QUIET_NAN), rounded), tl.bfloat16)


def round_to_fp8(handle: TensorHandle) -> TensorHandle:
    """To nearest, ties to even: the interpreter forgets the carry from the digits to the exponent."""
    codes = torch.from_numpy(np.array(handle.data, dtype=np.float32)).to(torch.float8_e4m3fn)
    return TensorHandle(codes.view(torch.uint8).numpy(), tl.float8e4nv)


def _in_float32(method: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    def apply(self: InterpreterBuilder, *arguments: Any) -> TensorHandle:
        if not any(map(is_bf16, arguments)):
            return method(self, *arguments)
        result = method(self, *(widen(argument) if is_bf16(argument) else argument for argument in arguments))
        # A comparison's result keeps its operands' type, and holds truth values.
        return result if result.data.dtype == np.bool_ else round_to_bf16(result)

    return apply


def _dot_in_float32(method: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    def apply(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *rest: Any) -> TensorHandle:
        return method(self, widen(a) if is_bf16(a) else a, widen(b) if is_bf16(b) else b, *rest)

    return apply


def _cast_through_float32(method: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    def apply(self: InterpreterBuilder, source: TensorHandle, to: Any, *rest: Any) -> TensorHandle:
        if to.scalar == tl.float8e4nv:
            return round_to_fp8(widen(source) if is_bf16(source) else source)
        if is_bf16(source) == (to.scalar == tl.bfloat16):
            return method(self, source, to, *rest)
        if is_bf16(source):
            wide = widen(source)
            return wide if to.scalar == tl.float32 else method(self, wide, to, *rest)
        if source.dtype.scalar.is_fp8():
            source = method(self, source, tl.float32, *rest)
        return round_to_bf16(TensorHandle(source.data.astype(np.float32), tl.float32))

    return apply


def _refuse_bf16(method: Callable[..., None]) -> Callable[..., None]:
    def check(self: Any, values: Any) -> None:
        assert not any(is_bf16(value.handle) for value in values), "reduce in float32, not in bfloat16"
        method(self, values)

    return check
