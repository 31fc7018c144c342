"""The Triton kernel of `latent_prefill`."""

from torch import Tensor

from kernels.arguments.latent_queries import LatentQueries
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import PrefillRows
from kernels.gpu.latent_launch import latent_tiles_of
from kernels.gpu.latent_tiles import attend_to_latents, has_latent_kernel, plan_here, shape_of


def latent_prefill(queries: LatentQueries, cache: PagedKV, rows: PrefillRows, scale: float, out_HTC: Tensor) -> object:
    """Without `rows.tiles` the list is planned here, which waits for the device."""
    if not has_latent_kernel(cache, out_HTC.dtype):
        return NotImplemented
    lines_N8 = rows.tiles
    if lines_N8 is None:
        lines_N8 = plan_here(latent_tiles_of(False, shape_of(queries, cache)), rows.query_lens, rows.context_lens)
    attend_to_latents(queries, cache, rows.page_tables, lines_N8, scale, out_HTC, is_decode=False)
    return None
