"""The launch parameters that models in production have: merges in the kernel, large tiles, whole vocabularies.

Everywhere with few heads and keys, which the interpreter can do; on a GPU with the models' own, up to 8,192 keys.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import PrefillRows, RowDraws
from kernels.dispatch import count_programs
from kernels.gpu import triton_kernels
from kernels.gpu.fusions import fuse
from kernels.gpu.launch_table import HOPPER, count_tile_tokens, find_capability, find_launch
from kernels.operations.draw_filtered import draw_filtered, draw_filtered_reference
from kernels.operations.paged_decode import paged_decode
from kernels.operations.paged_prefill import paged_prefill
from kernels.operations.quantized_kv import gather_heads, quantize_heads
from kernels.operations.sample import draw, draw_reference, greedy, greedy_reference
from kernels.operations.top_logprobs import top_logprobs, top_logprobs_reference
from kernels.plans.decode_work import (
    DecodeLayout,
    DecodeShape,
    DecodeWork,
    launch_shape_of,
    make_decode_scratch,
    plan_decode_work,
)
from kernels.plans.prefill_tiles import LONG_TILE_TOKENS, TILE_WORDS, max_prefill_tiles, plan_prefill_tiles
from tests.kernels.cases import DEVICES, PagedCase, Shape, assert_close, dense_attention
from tests.kernels.gpu.cases.latent_decode import SHAPES as LATENT_SHAPES
from tests.kernels.gpu.cases.model_shapes import MODEL_SHAPES, VOCAB_SIZES, ModelShape
from tests.kernels.latent_cases import LatentShape, attend_decode, attend_prefill, make_latent_case, with_latent_codes

PAGE_SIZE, BF16, FP8 = 16, torch.bfloat16, torch.float8_e4m3fn
DEVICE = DEVICES[-1]
ON_GPU = DEVICE == "cuda"

NUM_KEYS = [64, 8_192, 1, 65, 127, 1_000, 4_097, 2_048, 300, 511, 512, 513] if ON_GPU else [64, 300, 1]
PREFILLS = [(300, 0), (1, 8_000), (512, 7_680), (65, 63), (128, 128)] if ON_GPU else [(130, 0), (3, 70)]
"""New and earlier tokens of each row."""
SHARED_KEYS = 1_024 if ON_GPU else 192

MODELS = pytest.mark.parametrize("model", MODEL_SHAPES)
CODES = pytest.mark.parametrize("codes", [None, FP8], ids=["bf16", "fp8"])


def heads_of(model: str) -> Shape:
    """Returns the model's heads on a GPU, one key/value head of them otherwise."""
    shape: ModelShape = MODEL_SHAPES[model]
    num_kv_heads = shape.num_kv_heads if ON_GPU else 1
    return Shape(num_kv_heads * shape.queries_a_head, num_kv_heads, shape.head_dim, PAGE_SIZE)


def make_case(shape: Shape, lens: list[tuple[int, int]], codes: torch.dtype | None, num_shared: int = 0) -> PagedCase:
    """Returns rows of (new, earlier) tokens over scattered pages; the first `num_shared` tokens of all are alike."""
    generator = torch.Generator(DEVICE).manual_seed(1)
    shared_pages, max_pages = num_shared // PAGE_SIZE, max(-(-sum(both) // PAGE_SIZE) for both in lens)
    num_pages = len(lens) * max_pages
    size = num_pages * PAGE_SIZE, shape.num_kv_heads, shape.head_dim
    tables = torch.randperm(num_pages, device=DEVICE, generator=generator).to(torch.int32).view(len(lens), max_pages)
    tables[:, :shared_pages] = tables[0, :shared_pages].clone()
    halves = [torch.randn(size, device=DEVICE, generator=generator).to(BF16) for _ in range(2)]
    scales: list[Tensor | None] = [None, None]
    if codes is not None:
        halves, scales = map(list, zip(*(quantize_heads(half, codes) for half in halves), strict=True))
    cache = PagedKV(halves[0], halves[1], PAGE_SIZE, *scales)
    new, before = zip(*lens, strict=True)
    query = torch.randn(sum(new), shape.num_heads, shape.head_dim, device=DEVICE, generator=generator).to(BF16)
    options, expected = AttentionOptions(shape.head_dim**-0.5), []
    for row, rows_query in enumerate(query.split(new)):
        positions = torch.arange(sum(lens[row]), device=DEVICE)
        slots = cache.find_slots(tables[row : row + 1], positions[None])[0]
        kv = [gather_heads(half, its, slots, torch.float64) for half, its in zip(halves, scales, strict=True)]
        expected.append(dense_attention(rows_query, kv[0], kv[1], options))
    columns = [torch.tensor(column, dtype=torch.int32, device=DEVICE) for column in (new, before)]
    return PagedCase(query, cache, tables, columns[0], columns[1], options, lambda: torch.cat(expected))


def plan_work(case: PagedCase, shape: Shape, codes: torch.dtype | None, shares: bool) -> DecodeWork:
    """Returns the work as the runner plans it."""
    decode_shape = DecodeShape(shape.num_heads, shape.num_kv_heads, shape.head_dim, PAGE_SIZE, BF16, codes)
    num_programs = count_programs(decode_shape, torch.device(DEVICE))
    merges = bool(find_launch("decode_work", *decode_shape.launch_shape)["merges"])
    assert merges or find_capability() != HOPPER
    num_rows = len(case.query)
    layout = DecodeLayout(num_rows, shape.num_heads, shape.num_kv_heads, num_programs, shares, merges)
    words = np.full(layout.num_words, np.iinfo(np.int32).max, np.int32)
    num_keys = (case.context_lens + 1).cpu().numpy()
    plan_decode_work(layout, num_keys, case.page_tables.cpu().numpy(), PAGE_SIZE, words)
    assert words[0] > num_rows, "no row has parts to merge"
    plan = torch.from_numpy(words).to(DEVICE)
    return DecodeWork(layout, plan, make_decode_scratch(layout, shape.head_dim, torch.device(DEVICE)))


@MODELS
@pytest.mark.parametrize(
    ("codes", "fusions"),
    [(None, ()), (FP8, ()), (FP8, ("fp8_attention",))],
    ids=["bf16", "fp8", "products in fp8"],
)
@pytest.mark.parametrize("shares", [False, True], ids=["alone", "shared"])
def test_decode(model: str, codes: torch.dtype | None, fusions: tuple[str, ...], shares: bool) -> None:
    fuse(*fusions)
    shape = heads_of(model)
    num_keys = [max(count, SHARED_KEYS + 1) for count in NUM_KEYS] if shares else NUM_KEYS
    case = make_case(shape, [(1, count - 1) for count in num_keys], codes, SHARED_KEYS if shares else 0)
    work = plan_work(case, shape, codes, shares)
    out = torch.full_like(case.query, float("nan"))
    for _ in range(2):  # the second layer finds the counters as the first has left them
        paged_decode(
            case.query, case.cache, case.page_tables, case.context_lens + 1, case.options, out.fill_(1e9), work
        )
        assert_close(out, case.expected, BF16)
    assert not bool(work.scratch.counters.any())


@MODELS
@pytest.mark.parametrize("is_prefill", [False, True], ids=["decode", "prefill"])
def test_attention_over_codes_is_near_that_over_what_they_stand_for(model: str, is_prefill: bool) -> None:
    """A code of fp8 is within a sixteenth of its number, 2.6 % in the mean; so is attention, whatever the model."""
    shape = heads_of(model)
    lens = PREFILLS if is_prefill else [(1, count - 1) for count in NUM_KEYS]
    coded, exact = make_case(shape, lens, FP8), make_case(shape, lens, None).expected
    assert torch.equal(coded.query, make_case(shape, lens, None).query)
    out = torch.full_like(coded.query, float("nan"))
    if is_prefill:
        rows = PrefillRows(coded.page_tables, coded.query_lens, coded.context_lens)
        paged_prefill(coded.query, coded.cache, rows, coded.options, out)
    else:
        paged_decode(coded.query, coded.cache, coded.page_tables, coded.context_lens + 1, coded.options, out)
    assert 0.01 < float((out.double() - exact).norm() / exact.norm()) < 0.05


LONG_PROMPTS = pytest.param(
    None, True, id="long", marks=pytest.mark.skipif(find_capability() != HOPPER, reason="needs a Hopper GPU")
)


@pytest.mark.parametrize(
    ("codes", "is_long"), [pytest.param(None, False, id="bf16"), pytest.param(FP8, False, id="fp8"), LONG_PROMPTS]
)
@MODELS
def test_prefill(model: str, codes: torch.dtype | None, is_long: bool) -> None:
    """`is_long`: by the kernel for long prompts."""
    shape = heads_of(model)
    case = make_case(shape, PREFILLS, codes)
    launch_shape = launch_shape_of(shape.num_heads // shape.num_kv_heads, shape.head_dim, BF16, codes or BF16)
    tile_tokens = LONG_TILE_TOKENS if is_long else count_tile_tokens(*launch_shape)
    num_tiles = max_prefill_tiles(len(case.query), len(PREFILLS), tile_tokens)
    tiles = np.full((num_tiles, TILE_WORDS), np.iinfo(np.int32).max, np.int32)
    plan_prefill_tiles(case.query_lens.cpu().numpy(), case.context_lens.cpu().numpy(), tiles, tile_tokens)
    out = torch.full_like(case.query, float("nan"))
    columns = case.page_tables, case.query_lens, case.context_lens, torch.from_numpy(tiles).to(DEVICE)
    paged_prefill(case.query, case.cache, PrefillRows(*columns, is_long=is_long), case.options, out)
    assert_close(out, case.expected, BF16)


@pytest.mark.parametrize("model", LATENT_SHAPES if ON_GPU else ["Mistral 4"])
@pytest.mark.parametrize("codes", [None, FP8], ids=["bf16", "fp8"])
def test_latents(model: str, codes: torch.dtype | None) -> None:
    """Prompts and decode rows, with the launches of these ranks."""
    num_heads, rank, num_rotated = LATENT_SHAPES[model]
    shape = LatentShape(num_heads if ON_GPU else 4, rank, num_rotated, PAGE_SIZE)
    for attend, lens in ((attend_prefill, PREFILLS), (attend_decode, [(1, count - 1) for count in NUM_KEYS])):
        new, before = map(list, zip(*lens, strict=True))
        case = make_latent_case(shape, new, before, BF16, DEVICE)
        case = case if codes is None else with_latent_codes(case, rank, codes)
        assert_close(attend(case, rank), case.expected[..., :rank], BF16)


def without_triton(reference: Callable[..., Tensor], *arguments: object) -> Tensor:
    """Returns the result of a reference whose own operations use no Triton kernel either."""
    loaded = dict(triton_kernels._loaded)
    triton_kernels._loaded.clear()
    try:
        return reference(*arguments)
    finally:
        triton_kernels._loaded.update(loaded)


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_choosing_tokens(vocab_size: int) -> None:
    """All that reads logits, compared with plain torch on the CPU."""
    num_rows = 32 if ON_GPU else 1
    generator = torch.Generator().manual_seed(vocab_size)
    logits = (3 * torch.randn(num_rows, vocab_size, generator=generator)).to(BF16)
    rows, temperatures = torch.arange(num_rows), torch.full((num_rows,), 0.6)
    ids = torch.arange(num_rows, dtype=torch.int32) * 31
    draws = RowDraws(
        *(temperatures, rows, rows + 7),
        *(torch.full((num_rows,), 20), torch.full((num_rows,), 0.95), torch.zeros(num_rows)),
    )
    there = logits.to(DEVICE)
    assert greedy(there).tolist() == greedy_reference(logits).tolist()
    drawn = draw(there, *(column.to(DEVICE) for column in draws[:3]))
    assert drawn.tolist() == without_triton(draw_reference, logits, *draws[:3]).tolist()
    filtered = draw_filtered(there, rows.to(DEVICE), RowDraws(*(column.to(DEVICE) for column in draws)))
    assert filtered.tolist() == without_triton(draw_filtered_reference, logits, rows, draws).tolist()
    found = top_logprobs(there, ids.to(DEVICE), 20)
    for own, expected in zip(found, top_logprobs_reference(logits, ids, 20), strict=True):
        torch.testing.assert_close(own.cpu(), expected, rtol=1e-5, atol=1e-5)
