import pytest
import torch

from kernels.paged_prefill import paged_prefill
from tests.kernels.cases import DEVICES, PagedCase, Shape, assert_close, make_paged_case
from tests.kernels.test_paged_decode import SHAPES

QUERY_LENS = [1, 7, 16, 33, 64, 5, 1]
CONTEXT_LENS = [0, 0, 16, 3, 70, 129, 48]


def run(case: PagedCase) -> torch.Tensor:
    out = torch.full_like(case.query, float("nan"))
    paged_prefill(
        case.query,
        case.cache,
        case.page_tables,
        case.query_lens,
        case.context_lens,
        case.scale,
        out,
    )
    return out


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_dense_attention(shape: Shape, dtype: torch.dtype, device: str) -> None:
    case = make_paged_case(shape, QUERY_LENS, CONTEXT_LENS, dtype, device)
    assert_close(run(case), case.expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_that_is_not_finite_leaves_the_others_alone(device: str) -> None:
    case = make_paged_case(Shape(4, 2, 16, 16), [3, 5, 4], [20, 0, 2], torch.float32, device)
    case.cache.values[int(case.page_tables[1, 0]) * case.cache.page_size] = float("nan")
    out = run(case)
    assert not bool(out[3:8].isfinite().any())
    assert_close(out[:3], case.expected[:3], torch.float32)
    assert_close(out[8:], case.expected[8:], torch.float32)


def test_refuses_lengths_of_another_type() -> None:
    case = make_paged_case(Shape(2, 2, 8, 16), [3], [0], torch.float32, "cpu")
    with pytest.raises(AssertionError):
        paged_prefill(
            case.query,
            case.cache,
            case.page_tables,
            case.query_lens.long(),
            case.context_lens,
            case.scale,
            torch.empty_like(case.query),
        )
