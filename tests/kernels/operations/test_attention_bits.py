"""A token's attention has the same bits as part of a prompt, in a decode step of many rows, and alone."""

from typing import Any

import pytest
import torch

from kernels.arguments.rows import PrefillRows
from kernels.operations.paged_decode import paged_decode
from kernels.operations.paged_prefill import paged_prefill
from tests.kernels.cases import OPTIONS, PagedCase, Shape, make_paged_case, with_codes
from tests.kernels.each_case import each_case
from tests.naming import naming

SHAPES = [
    Shape(6, 2, 64, 16),
    Shape(32, 2, 128, 64),
    Shape(4, 4, 80, 1),
    Shape(6, 2, 16, 24),
    Shape(34, 2, 33, 8),
    Shape(48, 1, 96, 16),
    Shape(8, 1, 512, 16),
]
QUERY_LENS, CONTEXT_LENS = [150, 5], [0, 133]
ALONE = [0, 14, 15, 16, 63, 64, 65, 149, 150, 154]


def assert_same_bits(case: PagedCase) -> None:
    prompt, together = torch.full_like(case.query, float("nan")), torch.full_like(case.query, float("nan"))
    rows = PrefillRows(case.page_tables, case.query_lens, case.context_lens)
    paged_prefill(case.query, case.cache, rows, case.options, prompt)
    lens = zip(QUERY_LENS, CONTEXT_LENS, strict=True)
    num_keys = torch.cat([torch.arange(before + 1, before + new + 1) for new, before in lens]).int()
    tables = case.page_tables.repeat_interleave(torch.tensor(QUERY_LENS), dim=0)
    paged_decode(case.query, case.cache, tables, num_keys, case.options, together)
    assert (prompt != together).flatten(1).any(1).nonzero().flatten().tolist() == []
    for row in ALONE:
        one, alone = slice(row, row + 1), torch.full_like(case.query[:1], float("nan"))
        paged_decode(case.query[one], case.cache, tables[one], num_keys[one], case.options, alone)
        assert torch.equal(alone, prompt[one])


@each_case("has_codes", [False, True])
@each_case("shape", SHAPES)
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_a_token_has_the_bits_of_a_prompt(backend: str, dtype: torch.dtype, shape: Shape, has_codes: bool) -> None:
    if backend == "torch":
        pytest.skip("torch's products may add in another order for another number of tokens")
    options: list[dict[str, Any]] = [{}, {"window": 5}, {"window": 64}]
    for chosen in [*options, *(OPTIONS.values() if shape.num_heads == 6 else [])]:
        with naming(options=chosen):
            case = make_paged_case(shape, QUERY_LENS, CONTEXT_LENS, dtype, "cpu", **chosen)
            assert_same_bits(with_codes(case, torch.int8) if has_codes else case)
