import pytest
import torch

from kernels.arguments.latent_queries import LatentNorm, LatentQueries, LatentTokens
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import PrefillRows, RopeTables
from kernels.operations.join_heads import join_heads
from kernels.operations.latent_attention import latent_decode_reference, latent_prefill_reference
from kernels.operations.store_latents import store_latents, store_latents_reference
from tests.kernels.cases import TOLERANCES, assert_close
from tests.kernels.each_case import each_case
from tests.kernels.latent_cases import (
    LatentShape,
    attend_decode,
    attend_prefill,
    make_latent_case,
    split_queries,
    with_latent_codes,
)

SHAPES = [
    LatentShape(20, 512, 64, 16),
    LatentShape(5, 64, 8, 4),
    LatentShape(72, 256, 32, 64),
    LatentShape(1, 40, 6, 1),
]
DTYPES = [torch.float32, torch.bfloat16]


@each_case("dtype", DTYPES)
@each_case("shape", SHAPES)
def test_prompts_and_decode_rows(shape: LatentShape, dtype: torch.dtype) -> None:
    prompts = make_latent_case(shape, [1, 67, 17, 1], [0, 61, 500, 259], dtype)
    rows = make_latent_case(shape, [1, 1, 1], [0, 63, 700], dtype)
    for has_codes in (False, True):
        for case, attend in ((prompts, attend_prefill), (rows, attend_decode)):
            own = with_latent_codes(case, shape.rank) if has_codes else case
            assert_close(attend(own, shape.rank), own.expected[..., : shape.rank], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_has_the_same_bits_however_it_is_computed(backend: str, dtype: torch.dtype) -> None:
    """In a decode row, at any place of a prompt's chunk, alone and with others, before and after the first splits."""
    if backend == "torch":
        pytest.skip("torch's products may add in another order for another number of tokens")
    shape, before = LatentShape(20, 512, 64, 16), torch.get_num_threads()
    for length, num_threads in ((40, 1), (300, 2), (5300, 1 if dtype == torch.float32 else 2)):
        torch.set_num_threads(num_threads)
        whole = make_latent_case(shape, [length], [0], dtype)
        queries, tail = whole.query, 23
        whole.query, whole.query_lens, whole.context_lens = (
            queries[-tail:],
            whole.query_lens * 0 + tail,
            whole.query_lens - tail,
        )
        in_chunk = attend_prefill(whole, shape.rank)
        whole.page_tables = whole.page_tables.expand(tail, -1).contiguous()
        whole.context_lens = torch.arange(length - tail, length, dtype=torch.int32)
        together = attend_decode(whole, shape.rank)
        assert torch.equal(in_chunk, together)
        whole.query, whole.page_tables, whole.context_lens = (
            queries[-1:],
            whole.page_tables[:1],
            whole.context_lens[-1:],
        )
        assert torch.equal(attend_decode(whole, shape.rank), together[-1:])
    torch.set_num_threads(before)


def test_the_references() -> None:
    shape = LatentShape(4, 32, 8, 4)
    for context_lens, query_lens in (([0, 20], [7, 5]), ([3, 20], [1, 1])):
        case = make_latent_case(shape, query_lens, context_lens, torch.float32)
        queries = split_queries(case, shape.rank)
        out_HTC = torch.empty_like(queries.plain)
        if query_lens == [1, 1]:
            latent_decode_reference(
                queries, case.cache, case.page_tables, case.context_lens + 1, case.options.scale, out_HTC
            )
        else:
            rows = PrefillRows(case.page_tables, case.query_lens, case.context_lens)
            latent_prefill_reference(queries, case.cache, rows, case.options.scale, out_HTC)
        assert_close(out_HTC.transpose(0, 1), case.expected[..., : shape.rank], torch.float32)


@each_case("has_growth", [False, True])
@each_case(
    "dtypes",
    [
        *((torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16)),
        *((torch.float32, torch.float16), (torch.float32, torch.int8), (torch.bfloat16, torch.int8)),
    ],
)
def test_latents_are_stored_as_the_reference_stores_them(
    dtypes: tuple[torch.dtype, torch.dtype], has_growth: bool
) -> None:
    dtype, held = dtypes
    num_tokens, num_heads, plain, rotated, rank = 5, 3, 20, 6, 40
    generator = torch.Generator().manual_seed(4)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    weight, angles = (1 + random(rank) / 4).to(dtype), random(40, rotated // 2)
    tables = RopeTables(angles.cos(), angles.sin(), 20 if has_growth else 0)
    norm = LatentNorm(weight, 1e-6, tables, 1 + random(20).abs() if has_growth else None)
    positions, slots = torch.tensor([0, 3, 19, 4, 4], dtype=torch.int32), torch.tensor([7, 0, -1, 2, 3])
    query, latent = (
        random(num_tokens, num_heads, plain + rotated).to(dtype),
        random(num_tokens, rank + rotated).to(dtype),
    )
    results = []
    for store in (store_latents, store_latents_reference):
        stored = torch.zeros(8, 1, rank + rotated * (2 if held == torch.int8 else 1), dtype=held)
        scales = torch.zeros(8, 1, dtype=torch.bfloat16) if held == torch.int8 else None
        own = [random(num_heads, num_tokens, size).to(dtype) for size in (plain, rotated)]
        queries = LatentQueries(own[0], own[1], torch.zeros(num_heads, dtype=torch.int32))
        tokens = LatentTokens(query.clone(), latent.clone(), positions, slots)
        store(tokens, PagedKV(stored, stored, 4, scales, scales), norm, queries)
        values = [stored.float()]
        if scales is not None:
            values = [
                stored[..., :rank] * scales[..., None].float(),
                stored[..., rank:].contiguous().view(torch.bfloat16),
            ]
        results.append((*values, *queries))
    tolerance = TOLERANCES.get(held, TOLERANCES[torch.bfloat16])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=tolerance, atol=tolerance)
    assert results[0][-1].tolist() == [5, 10, 15]


def test_heads_are_joined() -> None:
    x_HTV = torch.arange(24.0).view(2, 3, 4)
    assert torch.equal(join_heads(x_HTV), x_HTV.transpose(0, 1).reshape(3, 8))
