"""The Triton kernel of `latent_decode`."""

from torch import Tensor

from kernels.arguments.latent_queries import LatentQueries
from kernels.arguments.paged_kv import PagedKV
from kernels.gpu.latent_launch import latent_tiles_of
from kernels.gpu.latent_tiles import attend_to_latents, has_latent_kernel, plan_here, shape_of
from kernels.plans.decode_work import DecodeWork
from kernels.plans.latent_tiles import LatentLayout
from kernels.plans.prefill_tiles import TILE_WORDS


def latent_decode(
    queries: LatentQueries,
    cache: PagedKV,
    page_tables_RP: Tensor,
    num_keys_R: Tensor,
    scale: float,
    out_HRC: Tensor,
    work: DecodeWork | None,
) -> object:
    """Without `work` the list is planned here, which waits for the device."""
    if not has_latent_kernel(cache, out_HRC.dtype):
        return NotImplemented
    if work is None:
        num_new_R = num_keys_R.clamp(max=1)
        lines_N8 = plan_here(latent_tiles_of(True, shape_of(queries, cache)), num_new_R, num_keys_R - num_new_R)
    else:
        assert isinstance(work.layout, LatentLayout)
        lines_N8 = work.plan.view(-1, TILE_WORDS)
    attend_to_latents(queries, cache, page_tables_RP, lines_N8, scale, out_HRC, is_decode=True)
    return None
