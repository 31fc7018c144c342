"""The Triton kernel of `gather_rows`: a program copies a piece of a row."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments.routes import Routes
from kernels.gpu.launch_table import find_launch


def gather_rows(x_TE: Tensor, routes: Routes, _out_RE: Tensor | None) -> Tensor:
    num_rows, size = len(routes.tokens), x_TE.shape[1]
    out_RE = x_TE.new_empty(num_rows, size)
    launch = find_launch("gather_rows")
    if num_rows:
        copy_rows[(num_rows, triton.cdiv(size, launch["BLOCK"]))](x_TE, routes.tokens, out_RE, size, **launch)
    return out_RE


@triton.jit(do_not_specialize_on_alignment=["tokens"])
def copy_rows(x, tokens, out, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens + row).to(tl.int64)
    values = tl.load(x + token * size + columns, mask=columns < size)
    tl.store(out + row * size + columns, values, mask=columns < size)
