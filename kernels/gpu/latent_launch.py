"""The launches of attention to latents, and the tiles that follow from them. The runner plans without Triton."""

from math import gcd

from kernels.gpu.launch_table import Launch, find_launch, has_fixed_launches
from kernels.plans.latent_tiles import LatentTiles
from kernels.plans.split_work import SPLIT_KEYS

LatentShape = tuple[int, int, int, int]
"""Query heads, values of a latent that are values too, rotated ones, and `launch_shape_of`'s bytes of an element."""


def find_latent_launch(is_decode: bool, shape: LatentShape) -> Launch:
    """Returns the launch of decode rows or of other tokens; fixed launches have one for both."""
    if has_fixed_launches():
        return find_launch("split_latents", *shape)
    return find_launch("latent_decode" if is_decode else "latent_prefill", *shape)


def latent_tiles_of(is_decode: bool, shape: LatentShape) -> LatentTiles:
    """Returns tiles of one decode row, or of the fewest tokens whose heads fill the rows of their programs."""
    block_rows = find_latent_launch(is_decode, shape)["BLOCK_M"]
    tile_tokens = 1 if is_decode else block_rows // gcd(block_rows, shape[0])
    num_blocks = -(-tile_tokens * shape[0] // block_rows)
    return LatentTiles(tile_tokens, num_blocks, SPLIT_KEYS if has_fixed_launches() else 0)
