"""The Triton kernels of latent attention compared with attention in float64, and the bits of fixed launches."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.arguments.latent_queries import LatentNorm, LatentQueries, LatentTokens
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import RopeTables
from kernels.gpu import latent_launch
from kernels.gpu.latent_launch import latent_tiles_of
from kernels.operations.store_latents import store_latents, store_latents_reference
from kernels.plans import latent_tiles
from kernels.plans.decode_work import DecodeScratch, DecodeWork
from kernels.plans.latent_tiles import LatentLayout, plan_latent_work
from tests.kernels.cases import TOLERANCES, PagedCase, assert_close
from tests.kernels.gpu.triton_in_use import triton_in_use
from tests.kernels.latent_cases import LatentShape, attend_decode, attend_prefill, make_latent_case, with_latent_codes

FP8 = torch.float8_e4m3fn
GLM, SMALL = LatentShape(20, 512, 64, 16), LatentShape(5, 64, 8, 4)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
CASES = [(SMALL, dtype) for dtype in DTYPES] + [(GLM, torch.bfloat16), (LatentShape(3, 40, 6, 2), torch.float32)]


def decode(case: PagedCase, rank: int, max_rows: int) -> Tensor:
    """Returns the outputs of the case's rows by a list with room for `max_rows`, as the runner plans it."""
    num_heads, size = case.query.shape[1:]
    itemsize = 4 if case.query.dtype == torch.float32 else case.cache.keys.itemsize
    layout = LatentLayout(latent_tiles_of(True, (num_heads, rank, size - rank, itemsize)), max_rows)
    words, num_keys = np.full(layout.num_words, np.iinfo(np.int32).max, np.int32), (case.context_lens + 1).cpu()
    plan_latent_work(layout, num_keys.numpy(), num_keys.numpy(), case.cache.page_size, words)
    unread = torch.empty(0, device=case.query.device)
    plan = torch.from_numpy(words).to(case.query.device)
    return attend_decode(case, rank, DecodeWork(layout, plan, DecodeScratch(unread, unread, unread)))


@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_decode_rows(shape: LatentShape, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    """Long rows are cut, whose parts are merged; short ones are not."""
    case = make_latent_case(shape, [1, 1, 1], [0, 63, 199], dtype, device)
    for found in (attend_decode(case, shape.rank), decode(case, shape.rank, max_rows=8)):
        assert_close(found, case.expected[..., : shape.rank], dtype)
    assert backend["latent_decode"] == 2


@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_prompts_and_draft_tokens(shape: LatentShape, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    case = make_latent_case(shape, [3, 17, 1], [140, 0, 20], dtype, device)
    assert_close(attend_prefill(case, shape.rank), case.expected[..., : shape.rank], dtype)
    assert backend["latent_prefill"] == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_caches_of_codes(dtype: torch.dtype, device: str) -> None:
    shape = SMALL
    for attend, lens in ((attend_prefill, ([3, 9], [70, 0])), (attend_decode, ([1, 1], [140, 3]))):
        case = with_latent_codes(make_latent_case(shape, *lens, dtype, device), shape.rank, FP8)
        assert_close(attend(case, shape.rank), case.expected[..., : shape.rank], dtype)


@pytest.mark.parametrize(("dtype", "has_codes"), [(torch.float32, False), (torch.bfloat16, True)], ids=str)
def test_with_fixed_launches_a_token_has_the_same_bits_in_every_step(
    dtype: torch.dtype, has_codes: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a prompt, in chunks, as one of several decode rows and as the only one, cut into any number of parts."""
    monkeypatch.setattr(latent_launch, "SPLIT_KEYS", 64)
    shape, length, tail = LatentShape(6, 64, 8, 4), 203, 5
    whole = make_latent_case(shape, [tail], [length - tail], dtype, device)
    if has_codes:
        whole = with_latent_codes(whole, shape.rank, FP8)
    lens = torch.arange(length - tail, length, dtype=torch.int32, device=device)
    rows = replace(whole, page_tables=whole.page_tables.expand(tail, -1).contiguous(), context_lens=lens)

    def alone(first: int, end: int) -> PagedCase:
        counts = torch.tensor([end - first], dtype=torch.int32, device=device)
        return replace(whole, query=whole.query[first:end], query_lens=counts, context_lens=lens[first : first + 1])

    with triton_in_use(is_fixed=True):
        expected = attend_prefill(whole, shape.rank)
        assert_close(expected, whole.expected[..., : shape.rank], dtype)
        for num_programs in (256, 2):
            monkeypatch.setattr(latent_tiles, "NUM_PROGRAMS", num_programs)
            assert torch.equal(decode(rows, shape.rank, max_rows=7), expected)
            assert torch.equal(decode(alone(4, 5), shape.rank, max_rows=1), expected[4:])
            chunks = [attend_prefill(alone(first, end), shape.rank) for first, end in ((0, 2), (2, 5))]
            assert torch.equal(torch.cat(chunks), expected)


@pytest.mark.parametrize("has_growth", [False, True])
@pytest.mark.parametrize("dtypes", [*((dtype, dtype) for dtype in DTYPES), (torch.bfloat16, FP8)], ids=str)
def test_latents_are_stored_as_the_reference_stores_them(
    dtypes: tuple[torch.dtype, torch.dtype], has_growth: bool, device: str, backend: Counter[str]
) -> None:
    """Heads that do not fill the last program; nothing else is written."""
    (dtype, held), has_codes = dtypes, dtypes[1] == FP8
    num_tokens, num_heads, plain, rotated, rank = 5, 70, 20, 6, 40
    generator = torch.Generator().manual_seed(4)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    angles, slots = random(40, rotated // 2), torch.tensor([7, 0, -1, 2, 3], device=device)
    tables = RopeTables(angles.cos(), angles.sin(), 20 if has_growth else 0)
    norm = LatentNorm((1 + random(rank) / 4).to(dtype), 1e-6, tables, 1 + random(20).abs() if has_growth else None)
    positions = torch.tensor([0, 3, 19, 4, 4], dtype=torch.int32, device=device)
    query, latent = (
        random(num_tokens, num_heads, plain + rotated).to(dtype),
        random(num_tokens, rank + rotated).to(dtype),
    )
    results: list[list[Tensor]] = []
    for store in (store_latents, store_latents_reference):
        stored = torch.zeros(8, 1, rank + rotated * (2 if has_codes else 1), device=device).to(held)
        scales = torch.zeros(8, 1, dtype=torch.bfloat16, device=device) if has_codes else None
        parts = [torch.full((num_heads, num_tokens, size), float("nan"), dtype=dtype) for size in (plain, rotated)]
        queries = LatentQueries(parts[0].to(device), parts[1].to(device), torch.zeros(num_heads).int().to(device))
        tokens = LatentTokens(query.clone(), latent.clone(), positions, slots)
        store(tokens, PagedKV(stored, stored, 4, scales, scales), norm, queries)
        values = [stored]
        if scales is not None:
            values = [stored[..., :rank].float() * scales[..., None].float()]
            values.append(stored[..., rank:].contiguous().view(torch.bfloat16))
        results.append([*values, *queries])
    assert backend["store_latents"] == 1
    tolerance = TOLERANCES[dtype] if not has_codes else 0.07
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=tolerance, atol=tolerance)
    assert results[0][-1].tolist() == [(head + 1) * num_tokens for head in range(num_heads)]
