"""The Triton kernel of `store_hidden`: a program copies a piece of a token's state.

Shape legend: T tokens, E embedding size, S slots.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch_table import find_launch


def store_hidden(hidden_TE: Tensor, slots_T: Tensor, kept_SE: Tensor) -> None:
    num_tokens, size = hidden_TE.shape
    launch = find_launch("store_hidden")
    if num_tokens:
        store_rows[(num_tokens, triton.cdiv(size, launch["BLOCK"]))](hidden_TE, slots_T, kept_SE, size, **launch)


@triton.jit
def store_rows(hidden, slots, kept, size, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + token)
    if slot >= 0:
        mask = columns < size
        tl.store(kept + slot * size + columns, tl.load(hidden + token * size + columns, mask=mask), mask=mask)
