"""A cache of float16 with queries of float32: what the CPU has by default for weights in blocks (decision 0126)."""

from dataclasses import replace

import torch

from kernels.arguments.paged_kv import MAX_FLOAT16, PagedKV
from kernels.operations.rotate_store import rotate_store, rotate_store_reference
from kernels.operations.store_kv import store_kv
from tests.kernels.cases import OPTIONS, PagedCase, Shape, assert_close, make_paged_case
from tests.kernels.each_case import each_case
from tests.kernels.operations import test_paged_decode, test_paged_prefill
from tests.kernels.operations.test_rotate_store import empty_cache, make_inputs
from tests.naming import naming

SHAPES = [Shape(6, 2, 64, 16), Shape(8, 2, 128, 16), Shape(4, 4, 80, 16), Shape(6, 2, 20, 24), Shape(6, 2, 512, 16)]
UNUSUAL = [7e4, -1e30, 65519.0, torch.inf, -torch.inf, torch.nan, 1e-8, -6e-8, 2.0**-14, 1 + 2.0**-11, 1 + 3 * 2.0**-11]


def in_both(case: PagedCase) -> tuple[PagedCase, PagedCase]:
    """Returns the case over a cache of float16, and over one with the same values in float32."""
    keys, values = case.cache.keys.half(), case.cache.values.half()
    narrow = PagedKV(keys, values, case.cache.page_size)
    return replace(case, cache=narrow), replace(case, cache=replace(narrow, keys=keys.float(), values=values.float()))


@each_case("options", [{}, OPTIONS["all"]])
@each_case("module", [test_paged_decode, test_paged_prefill])
def test_attention_is_that_over_the_same_values_in_float32(module: object, options: dict[str, object]) -> None:
    for shape in SHAPES:
        if options and shape.num_heads != 6:
            continue
        with naming(shape=shape):
            is_decode = module is test_paged_decode
            lens = ([1] * 6, [0, 1, 15, 63, 64, 300]) if is_decode else ([1, 7, 65, 130], [0, 16, 129, 61])
            narrow, wide = in_both(make_paged_case(shape, *lens, torch.float32, "cpu", **options))
            run = test_paged_decode.run if is_decode else test_paged_prefill.run
            assert torch.equal(run(narrow), run(wide))
            assert_close(run(narrow), narrow.expected, torch.float16)


def test_rows_that_share_pages_are_the_same_alone() -> None:
    case, _ = in_both(make_paged_case(Shape(6, 2, 64, 16), [1] * 4, [99, 99, 150, 80], torch.float32, "cpu"))
    case.page_tables[1, :6] = case.page_tables[0, :6]
    assert torch.equal(test_paged_decode.run(case), test_paged_decode.run_each_alone(case))


def test_stored_values_are_rounded_to_the_nearest_and_finite_ones_stay_finite() -> None:
    for shape in ((2, 1, 64), (9, 3, 20), (3, 3, 6)):
        heads, tables, positions, slots = make_inputs(*shape, torch.float32, "cpu")
        heads[0, -1, : min(shape[2], len(UNUSUAL))] = torch.tensor(UNUSUAL[: shape[2]])
        mine, theirs = (empty_cache(shape[1], shape[2], torch.float16, "cpu") for _ in range(2))
        rotate_store_reference(heads.clone(), theirs, tables, positions, slots)
        rotate_store(heads, mine, tables, positions, slots)
        assert_close(mine.keys[slots[slots >= 0]], theirs.keys[slots[slots >= 0]], torch.float16)
        assert torch.equal(mine.values.nan_to_num(nan=9.0), theirs.values.nan_to_num(nan=9.0))
        assert mine.values[19, -1, :2].tolist() == [MAX_FLOAT16, -MAX_FLOAT16]


def test_store_kv_rounds_alike() -> None:
    values = torch.tensor(UNUSUAL).view(1, 1, -1)
    cache = PagedKV(torch.zeros(4, 1, len(UNUSUAL)).half(), torch.zeros(4, 1, len(UNUSUAL)).half(), 4)
    store_kv(values, values, cache, torch.tensor([2]))
    expected = [MAX_FLOAT16, -MAX_FLOAT16, MAX_FLOAT16, torch.inf, -torch.inf]
    assert cache.keys[2, 0, :5].tolist() == expected
    assert bool(cache.keys[2, 0, 5].isnan())
    assert torch.equal(cache.values[2, 0, 6:], values[0, 0, 6:].half())
