"""Makes a row of a product have the same bits whatever the tile's other rows are, as in a tensor core.

Triton's interpreter multiplies by numpy, whose BLAS has kernels for edges of a tile that add in another order on some
CPUs. Here products are added up in float64, so that the order is lost when the sum is rounded to float32.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from kernels.gpu.launch_table import has_fixed_launches


def make_rows_independent() -> None:
    """From now on it holds with fixed launches, which promise it; a second call changes nothing."""
    if not getattr(InterpreterBuilder, "has_independent_rows", False):
        InterpreterBuilder.has_independent_rows = True
        InterpreterBuilder.create_dot = _with_independent_rows(InterpreterBuilder.create_dot)


def _with_independent_rows(method: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    def apply(
        self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, sums: TensorHandle, *rest: Any
    ) -> TensorHandle:
        if not has_fixed_launches() or min(a.data.dtype.itemsize, b.data.dtype.itemsize) < 2:
            return method(self, a, b, sums, *rest)
        product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64)).astype(np.float32)
        return TensorHandle((product + sums.data).astype(sums.data.dtype), sums.dtype.scalar)

    return apply
