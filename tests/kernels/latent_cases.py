"""Attention to latents in a paged cache with poison in it, for the tests of its kernels.

Shape legend: H heads, T tokens, C values of a latent that are values, too, X rotated ones.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.arguments.latent_queries import LatentQueries
from kernels.arguments.rows import PrefillRows
from kernels.operations.latent_attention import latent_decode, latent_prefill
from tests.kernels.cases import PagedCase, Shape, make_paged_case


@dataclass(frozen=True)
class LatentShape:
    num_heads: int
    rank: int
    num_rotated: int
    page_size: int


def make_latent_case(
    shape: LatentShape, query_lens: list[int], context_lens: list[int], dtype: torch.dtype, device: str = "cpu"
) -> PagedCase:
    """Returns a case of one key/value head whose values are its keys; `expected` also has their rotated part."""
    paged = Shape(shape.num_heads, 1, shape.rank + shape.num_rotated, shape.page_size)
    case = make_paged_case(paged, query_lens, context_lens, dtype, device)
    cache = replace(case.cache, values=case.cache.keys)
    queries, tables = case.query.split(query_lens), case.page_tables

    def attend(row: int) -> Tensor:
        last = context_lens[row] + query_lens[row]
        slots = cache.find_slots(tables[row : row + 1], torch.arange(last, device=device)[None])[0]
        latents_LD = cache.keys[slots, 0].double()
        scores_HTL = torch.einsum("thd,ld->htl", queries[row].double(), latents_LD) * case.options.scale
        unseen_TL = torch.ones(scores_HTL.shape[1:], dtype=torch.bool, device=device).triu(last - query_lens[row] + 1)
        weights_HTL = scores_HTL.masked_fill(unseen_TL, float("-inf")).softmax(-1)
        return torch.einsum("htl,ld->thd", weights_HTL, latents_LD)

    return replace(case, cache=cache, attend=lambda: torch.cat([attend(row) for row in range(len(query_lens))]))


def split_queries(case: PagedCase, rank: int) -> LatentQueries:
    """Returns the queries by head, whose heads are further apart than they are long."""
    query_HTD = torch.nn.functional.pad(case.query.transpose(0, 1), (0, 0, 0, 3))
    parts = (query_HTD[:, :, :rank].contiguous(), query_HTD[:, :, rank:].contiguous())
    plain, rotated = (part[:, : len(case.query)] for part in parts)
    return LatentQueries(plain, rotated, plain.new_empty(0, dtype=torch.int32))


def attend_prefill(case: PagedCase, rank: int) -> Tensor:
    """Returns the outputs, [T, H, C]."""
    queries = split_queries(case, rank)
    out_HTC = torch.full_like(queries.plain, float("nan"))
    rows = PrefillRows(case.page_tables, case.query_lens, case.context_lens)
    latent_prefill(queries, case.cache, rows, case.options.scale, out_HTC)
    return out_HTC.transpose(0, 1)


def attend_decode(case: PagedCase, rank: int) -> Tensor:
    queries = split_queries(case, rank)
    out_HRC = torch.full_like(queries.plain, float("nan"))
    latent_decode(queries, case.cache, case.page_tables, case.context_lens + 1, case.options.scale, out_HRC)
    return out_HRC.transpose(0, 1)
