"""The Triton kernel of `take_tokens`: the first node of a step's graph.

Shape legend: T tokens of the step, D decode rows, S rows that the previous step sampled.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch_table import find_launch


def take_tokens(token_ids_T: Tensor, sources_D: Tensor, sampled_S: Tensor) -> None:
    num_rows = len(sources_D)
    launch = find_launch("take_tokens")
    take_tokens_kernel[(triton.cdiv(num_rows, launch["BLOCK"]),)](token_ids_T, sources_D, sampled_S, num_rows, **launch)


@triton.jit(do_not_specialize=["num_rows"])
def take_tokens_kernel(token_ids_ptr, sources_ptr, sampled_ptr, num_rows, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sources = tl.load(sources_ptr + rows, mask=rows < num_rows, other=-1)
    is_taken = sources >= 0
    tokens = tl.load(sampled_ptr + sources, mask=is_taken, other=0)
    tl.store(token_ids_ptr + rows, tl.maximum(tokens, 0).to(tl.int32), mask=is_taken)
