"""What the kernels' tests share: devices, tolerances, paged caches with poison in them, dense attention in float64.

Shape legend: T tokens, H query heads, G key/value heads, D head dimension, S slots, R rows, P pages, L keys of a row.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.paged_kv import SCALE_DTYPE, PagedKV
from kernels.operations.quantized_kv import gather_heads, quantize_heads

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
WINDOWS = [1, 7, 15, 16, 17, 63, 64, 65, 1000]
"""Around the sizes of pages and blocks, and longer than any context."""

OPTIONS: dict[str, dict[str, Any]] = {
    "soft cap": {"softcap": 1.5},
    "high soft cap": {"softcap": 50.0},
    "sinks": {"sinks": torch.tensor([1.0, -2.0, 0.0, 30.0, -30.0, 4.0])},
    "all": {"window": 70, "softcap": 2.0, "sinks": torch.tensor([3.0, -2.0, 0.0, 5.0, -30.0, 4.0])},
}
"""Options of attention with 6 query heads, by name."""

TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass
class PagedCase:
    """Rows whose K and V lie scattered in a cache that is NaN elsewhere, with the attention they must get."""

    query: Tensor
    """[T, H, D]"""
    cache: PagedKV
    page_tables: Tensor
    """int32 [R, P], padded with -1."""
    query_lens: Tensor
    context_lens: Tensor
    options: AttentionOptions
    attend: Callable[[], Tensor]
    """Returns the expected attention, float64 [T, H, D]."""
    last_keys: Tensor | None = None

    @cached_property
    def expected(self) -> Tensor:
        return self.attend()


@dataclass(frozen=True)
class Shape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int


def make_paged_case(
    shape: Shape, query_lens: list[int], context_lens: list[int], dtype: torch.dtype, device: str, **options: Any
) -> PagedCase:
    """`options`: those of `AttentionOptions` except the scale. K, V and pages behind the windows are poison, too."""
    generator = torch.Generator().manual_seed(sum(query_lens) + 7 * sum(context_lens))
    num_pages = [-(-(n + c) // shape.page_size) for n, c in zip(query_lens, context_lens, strict=True)]
    pages = list(range(sum(num_pages) + 3))
    random.Random(1).shuffle(pages)
    num_slots = len(pages) * shape.page_size
    caches = torch.full((2, num_slots, shape.num_kv_heads, shape.head_dim), float("nan"), dtype=dtype)
    query_THD = torch.randn(sum(query_lens), shape.num_heads, shape.head_dim, generator=generator).to(dtype)
    page_tables = torch.full((len(query_lens), max(num_pages) + 1), -1, dtype=torch.int32)
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    first, attention = 0, AttentionOptions(shape.head_dim**-0.5, **options)
    for row, (num_new, num_before) in enumerate(zip(query_lens, context_lens, strict=True)):
        row_pages = torch.tensor([pages.pop() for _ in range(num_pages[row])])
        page_tables[row, : len(row_pages)] = row_pages
        slots = (row_pages[:, None] * shape.page_size + torch.arange(shape.page_size)).view(-1)[: num_before + num_new]
        kv = torch.randn(2, len(slots), shape.num_kv_heads, shape.head_dim, generator=generator).to(dtype)
        begin = first_seen(num_before, attention)
        caches[:, slots[begin:]] = kv[:, begin:]
        page_tables[row, : begin // shape.page_size] = -1
        rows.append((query_THD[first : first + num_new].clone(), *kv[:, begin:]))
        first += num_new
    return PagedCase(
        query_THD.to(device),
        PagedKV(caches[0].to(device), caches[1].to(device), shape.page_size),
        page_tables.to(device),
        torch.tensor(query_lens, dtype=torch.int32, device=device),
        torch.tensor(context_lens, dtype=torch.int32, device=device),
        replace(attention, sinks=None if attention.sinks is None else attention.sinks.to(device)),
        lambda: torch.cat([dense_attention(*row, attention) for row in rows]).to(device),
    )


def with_codes(case: PagedCase, code_dtype: torch.dtype) -> PagedCase:
    """Returns the case over a cache of codes; tokens and heads differ in size by up to a hundred times.

    The expected result is the attention over the decoded values. The scales of unused slots are NaN.
    """
    cache, parts, expected, first = case.cache, [], [], 0
    is_used_S = cache.keys[:, 0, 0].isfinite()
    sizes = 10 ** (2 * torch.rand(2, *cache.keys.shape[:2], 1, generator=torch.Generator().manual_seed(3)) - 1.5)
    for values, size in zip((cache.keys, cache.values), sizes.to(cache.keys.device), strict=True):
        codes, scales = quantize_heads((values * size).to(values.dtype), code_dtype)
        assert codes.dtype == code_dtype
        assert scales.dtype == SCALE_DTYPE
        assert bool((scales.isfinite() == is_used_S[:, None]).all())
        parts.append((codes, scales))
    (keys, key_scales), (values, value_scales) = parts
    coded = PagedKV(keys, values, cache.page_size, key_scales, value_scales)
    for row, num_new in enumerate(case.query_lens.tolist()):
        num_before = int(case.context_lens[row])
        begin = first_seen(num_before, case.options)
        positions = torch.arange(begin, num_before + num_new, device=keys.device)
        slots = cache.find_slots(case.page_tables[row : row + 1], positions[None])[0]
        kv = [gather_heads(codes, scales, slots, torch.float64).cpu() for codes, scales in parts]
        expected.append(dense_attention(case.query[first : first + num_new].cpu(), kv[0], kv[1], case.options))
        first += num_new
    return replace(case, cache=coded, attend=lambda: torch.cat(expected).to(keys.device))


def with_spans(case: PagedCase, spans: Mapping[int, Sequence[tuple[int, int]]]) -> PagedCase:
    """Returns the case in which tokens of a span attend to all of it; `spans`: by row, from where to where (exclusive).

    All tokens of a span that are not in the cache are new.
    """
    cache, expected, found, first = case.cache, [], [], 0
    for row, (num_new, num_before) in enumerate(zip(case.query_lens.tolist(), case.context_lens.tolist(), strict=True)):
        begin, last = first_seen(num_before, case.options), torch.arange(num_before, num_before + num_new)
        for start, end in spans.get(row, ()):
            assert end <= num_before + num_new
            last[max(start, num_before) - num_before : end - num_before] = end - 1
        slots = cache.find_slots(case.page_tables[row : row + 1], torch.arange(begin, num_before + num_new)[None])[0]
        parts = (cache.keys, cache.key_scales), (cache.values, cache.value_scales)
        kv = [gather_heads(stored, scales, slots.to(stored.device), torch.float64).cpu() for stored, scales in parts]
        query_NHD = case.query[first : first + num_new].cpu()
        options = replace(case.options, sinks=None if case.options.sinks is None else case.options.sinks.cpu())
        expected.append(dense_attention(query_NHD, kv[0], kv[1], options, last - begin))
        found.append(last)
        first += num_new
    last_keys = torch.cat(found).int().to(case.query.device)
    return replace(case, last_keys=last_keys, attend=lambda: torch.cat(expected).to(case.query.device))


def first_seen(position: int, options: AttentionOptions) -> int:
    """Returns the first position that a token attends to."""
    return 0 if options.window is None else max(0, position + 1 - options.window)


def dense_attention(
    query_THD: Tensor, key_LGD: Tensor, value_LGD: Tensor, options: AttentionOptions, last_T: Tensor | None = None
) -> Tensor:
    """Returns attention in float64; the last query is at the position of the last key.

    It is causal, unless the last key of each query is given.
    """
    repeats = query_THD.shape[1] // key_LGD.shape[1]
    key_LHD = key_LGD.double().repeat_interleave(repeats, dim=1)
    value_LHD = value_LGD.double().repeat_interleave(repeats, dim=1)
    scores_HTL = torch.einsum("thd,lhd->htl", query_THD.double(), key_LHD) * options.scale
    if options.softcap is not None:
        scores_HTL = options.softcap * (scores_HTL / options.softcap).tanh()
    num_queries, num_keys = scores_HTL.shape[1:]
    later_TL = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query_THD.device)
    unseen_TL = later_TL.triu(num_keys - num_queries + 1)
    if last_T is not None:
        unseen_TL = torch.arange(num_keys) > last_T[:, None]
    if options.window is not None:
        unseen_TL |= later_TL.tril(num_keys - num_queries - options.window)
    weights_HTL = scores_HTL.masked_fill(unseen_TL, float("-inf")).exp()
    totals_HT1 = weights_HTL.sum(-1, keepdim=True)
    if options.sinks is not None:
        totals_HT1 += options.sinks.to(scores_HTL)[:, None, None].exp()
    weights_HTL /= totals_HT1
    return torch.einsum("htl,lhd->thd", weights_HTL, value_LHD)


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)
