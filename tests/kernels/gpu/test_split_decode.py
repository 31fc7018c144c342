"""Attention with fixed launches: a token has the same bits as a decode row, in a prompt and in chunks of any size.

In the interpreter a product gives a row of a tile the same bits whatever the others are (`interpreter_rows.py`). So it
shows that tiles, blocks, splits and merges are the same, not that compiled kernels keep their order.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.arguments.rows import PrefillRows
from kernels.operations.paged_decode import paged_decode
from kernels.operations.paged_prefill import paged_prefill
from kernels.plans import split_work
from kernels.plans.decode_work import DecodeWork
from kernels.plans.split_work import SPLIT_KEYS, SplitLayout, make_split_scratch, plan_split_work
from tests.kernels.cases import (
    OPTIONS,
    PagedCase,
    Shape,
    assert_close,
    make_paged_case,
    with_codes,
    with_spans,
)
from tests.kernels.gpu.triton_in_use import triton_in_use

NUM_KEYS = 2 * SPLIT_KEYS + 70
LAST = 7
"""The tokens that are computed in every way."""


@pytest.fixture(autouse=True)
def backend(backend: Counter[str]) -> Iterator[Counter[str]]:
    with triton_in_use(is_fixed=True) as taken:
        yield taken


def decode(case: PagedCase, max_rows: int | None = None) -> Tensor:
    """Returns the outputs of the case's rows of one token, by a list with room for `max_rows`."""
    num_rows, num_heads, head_dim = case.query.shape
    layout = SplitLayout(max_rows or num_rows, num_heads)
    words, num_keys = np.full(layout.num_words, np.iinfo(np.int32).max, np.int32), (case.context_lens + 1).cpu()
    plan_split_work(layout, num_keys.numpy(), num_keys.numpy(), case.cache.page_size, words, case.options.window)
    device = case.query.device
    work = DecodeWork(layout, torch.from_numpy(words).to(device), make_split_scratch(layout, head_dim, device))
    out = torch.full_like(case.query, float("nan"))
    paged_decode(case.query, case.cache, case.page_tables, num_keys.to(device), case.options, out, work)
    return out


def prefill(case: PagedCase) -> Tensor:
    out = torch.full_like(case.query, float("nan"))
    rows = PrefillRows(case.page_tables, case.query_lens, case.context_lens, last_keys=case.last_keys)
    paged_prefill(case.query, case.cache, rows, case.options, out)
    return out


def part_of(case: PagedCase, first: int, end: int) -> PagedCase:
    """Returns the case with only these new tokens of its only row."""
    lens = torch.tensor([[end - first], [int(case.context_lens[0]) + first]], dtype=torch.int32).to(case.query.device)
    return replace(case, query=case.query[first:end].contiguous(), query_lens=lens[0], context_lens=lens[1])


def as_decode_rows(case: PagedCase) -> PagedCase:
    """Returns the case with each new token of its only row as a row of its own."""
    num_tokens = len(case.query)
    lens = case.context_lens[0] + torch.arange(num_tokens, dtype=torch.int32, device=case.query.device)
    tables = case.page_tables.expand(num_tokens, -1).contiguous()
    return replace(case, page_tables=tables, query_lens=torch.ones_like(lens), context_lens=lens)


def check_every_way(case: PagedCase, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = prefill(case)
    assert_close(expected, case.expected, case.query.dtype)
    chunks = [part_of(case, 0, 1), part_of(case, 1, 4), part_of(case, 4, LAST)]
    assert torch.equal(torch.cat([prefill(chunk) for chunk in chunks]), expected)
    rows = as_decode_rows(case)
    assert torch.equal(decode(rows), expected)
    assert torch.equal(decode(part_of(case, 4, 5)), expected[4:5])
    some = slice(0, None, 4)
    columns = {name: getattr(rows, name)[some] for name in ("query", "page_tables", "query_lens", "context_lens")}
    for max_parts in (1, 6):  # a program for each row, and one that reads two splits
        monkeypatch.setattr(split_work, "MAX_PARTS", max_parts)
        assert torch.equal(decode(replace(rows, **columns), max_rows=LAST), expected[some])


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *((Shape(1, 1, 64, 16), torch.float32), (Shape(5, 1, 128, 16), torch.bfloat16)),
        (Shape(4, 2, 24, 4), torch.float16),
    ],
    ids=str,
)
def test_a_token_has_the_same_bits_in_every_step(
    shape: Shape, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_every_way(make_paged_case(shape, [LAST], [NUM_KEYS - LAST], dtype, device), monkeypatch)


@pytest.mark.parametrize("options", [name for name in OPTIONS if name != "high soft cap"])
def test_windows_caps_and_sinks(options: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_paged_case(Shape(6, 2, 16, 16), [LAST], [NUM_KEYS - LAST], torch.float32, device, **OPTIONS[options])
    check_every_way(case, monkeypatch)


@pytest.mark.parametrize("num_keys", [LAST, SPLIT_KEYS, SPLIT_KEYS + 4, SPLIT_KEYS + 64 + LAST])
@pytest.mark.parametrize("window", [3, 64])
def test_splits_and_windows_that_begin_among_the_tokens(
    window: int, num_keys: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_paged_case(Shape(2, 1, 16, 16), [LAST], [num_keys - LAST], torch.float16, device, window=window)
    check_every_way(case, monkeypatch)


@pytest.mark.parametrize("window", [None, 64])
def test_tokens_outside_of_a_span_keep_their_bits(window: int | None, device: str) -> None:
    plain = make_paged_case(Shape(2, 1, 16, 16), [LAST], [NUM_KEYS - LAST], torch.float32, device, window=window)
    case = with_spans(plain, {0: [(NUM_KEYS - 6, NUM_KEYS - 2)]})
    found, outside = prefill(case), [0, 4, 5, 6]
    assert_close(found, case.expected, torch.float32)
    assert torch.equal(found[outside], prefill(plain)[outside])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_of_codes(dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_paged_case(Shape(2, 1, 16, 16), [LAST], [NUM_KEYS - LAST], dtype, device)
    check_every_way(with_codes(case, torch.float8_e4m3fn), monkeypatch)


def test_other_rows_change_no_bit(device: str) -> None:
    """Rows of any length, also none, as a captured step has them."""
    shape, lens = Shape(4, 2, 32, 16), [NUM_KEYS, 3, SPLIT_KEYS - 1, 2 * SPLIT_KEYS]
    case = make_paged_case(shape, [1] * len(lens), lens, torch.bfloat16, device)
    out = decode(case, max_rows=8)
    assert_close(out, case.expected, torch.bfloat16)
    for row in range(len(lens)):
        one = slice(row, row + 1)
        columns = case.query[one], case.page_tables[one], case.query_lens[one], case.context_lens[one]
        names = ("query", "page_tables", "query_lens", "context_lens")
        alone = replace(case, **dict(zip(names, columns, strict=True)))
        assert torch.equal(decode(alone), out[one])
        assert torch.equal(prefill(alone), out[one])


def test_a_long_row_has_more_splits_than_parts(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_work, "MAX_PARTS", 3)
    layout, words = SplitLayout(2, 4), np.zeros(SplitLayout(2, 4).num_words, np.int32)
    lens = np.array([5 * SPLIT_KEYS + 1], np.int32)
    plan_split_work(layout, lens, lens, 16, words)
    tiles = words[: layout.parts_word].reshape(-1, 8)
    assert tiles.tolist() == [[0, -1, 0, 1, 0, 4, 0, 1], [0, -1, 0, 1, 4, 5, 1, 0], [0, -1, 0, 1, 5, 6, 2, 0]]
    assert words[layout.parts_word :].tolist()[:3] == [0, 3, 3]
