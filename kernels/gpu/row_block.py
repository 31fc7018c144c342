"""How one program holds a whole row of a tensor in its registers."""

import triton

ELEMENTS_A_THREAD, THREADS_A_WARP, MAX_WARPS = 16, 32, 16
"""Of 16 bits each: two loads of 16 bytes a thread and operand."""


def row_block(size: int) -> dict[str, int]:
    """Returns the `BLOCK` and the `num_warps` for rows of `size` elements."""
    block = triton.next_power_of_2(size)
    return {"BLOCK": block, "num_warps": min(MAX_WARPS, max(1, block // (ELEMENTS_A_THREAD * THREADS_A_WARP)))}
