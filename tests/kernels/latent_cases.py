"""Attention to latents in a paged cache with poison in it, for the tests of its kernels.

Shape legend: H heads, T tokens, C values of a latent that are values, too, X rotated ones.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.arguments.latent_queries import LatentQueries
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import PrefillRows
from kernels.operations.latent_attention import latent_decode, latent_prefill
from kernels.operations.quantized_kv import quantize_heads
from kernels.plans.decode_work import DecodeWork
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
    return replace(case, cache=cache, attend=lambda: _attend(case, cache))


def with_latent_codes(case: PagedCase, rank: int, code_dtype: torch.dtype = torch.int8) -> PagedCase:
    """Returns the case over a cache of codes; the expected result is that of the decoded values."""
    keys, dtype = case.cache.keys, case.query.dtype
    codes, scales = quantize_heads(keys[..., :rank], code_dtype)
    rotated = keys[..., rank:].bfloat16()
    coded = torch.cat((codes.view(torch.uint8), rotated.view(torch.uint8)), 2).view(code_dtype)
    decoded = torch.cat(((codes.float() * scales[..., None].float()).to(dtype), rotated.to(dtype)), 2)
    plain = PagedKV(decoded, decoded, case.cache.page_size)
    cache = PagedKV(coded, coded, case.cache.page_size, scales, scales)
    return replace(case, cache=cache, attend=lambda: _attend(case, plain))


def _attend(case: PagedCase, cache: PagedKV) -> Tensor:
    found: list[Tensor] = []
    lens = case.query_lens.tolist()
    for row, query_THD in enumerate(case.query.split(lens)):
        last = int(case.context_lens[row]) + lens[row]
        positions = torch.arange(last, device=query_THD.device)
        latents_LD = cache.keys[cache.find_slots(case.page_tables[row : row + 1], positions[None])[0], 0].double()
        scores_HTL = torch.einsum("thd,ld->htl", query_THD.double(), latents_LD) * case.options.scale
        unseen_TL = torch.ones(scores_HTL.shape[1:], dtype=torch.bool, device=query_THD.device).triu(
            last - lens[row] + 1
        )
        weights_HTL = scores_HTL.masked_fill(unseen_TL, float("-inf")).softmax(-1)
        found.append(torch.einsum("htl,ld->thd", weights_HTL, latents_LD))
    return torch.cat(found)


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


def attend_decode(case: PagedCase, rank: int, work: DecodeWork | None = None) -> Tensor:
    queries = split_queries(case, rank)
    out_HRC = torch.full_like(queries.plain, float("nan"))
    latent_decode(queries, case.cache, case.page_tables, case.context_lens + 1, case.options.scale, out_HRC, work)
    return out_HRC.transpose(0, 1)
