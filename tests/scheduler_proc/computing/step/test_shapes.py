import msgspec
import pytest

from messages.columns import pack_int32
from messages.ring.steps import Batch, PromptLogprobTargets
from scheduler_proc.computing.step.shapes import StepLimits, StepShapes, decode_row_counts, prefill_token_counts
from tests.scheduler_proc.computing.drive import Row, plan_batch

LIMITS = StepLimits(max_num_seqs=20, max_num_batched_tokens=200, num_pages=8)


def make_batch(num_decode: int, num_prefill_tokens: int) -> Batch:
    rows = [(Row(i, [1, 2, 3], 2, num_computed=2, pages=[i]), 1) for i in range(num_decode)]
    if num_prefill_tokens:
        rows.append((Row(99, [1] * 1000, 1000, pages=list(range(63))), num_prefill_tokens))
    return plan_batch(1, rows, 16)


def test_the_counts_that_steps_are_padded_to() -> None:
    assert decode_row_counts(1) == [1]
    assert decode_row_counts(20) == [1, 2, 4, 8, 16, 20]
    assert decode_row_counts(300)[-5:] == [240, 248, 256, 288, 300]
    assert prefill_token_counts(1) == [16]
    assert prefill_token_counts(48) == [16, 32, 48]
    assert prefill_token_counts(50) == [16, 32, 48, 64]
    assert prefill_token_counts(8192)[-3:] == [2048, 3072, 4096]


@pytest.mark.parametrize(
    ("rows", "tokens", "places"),
    [
        (1, 0, (1, 0)),
        (3, 0, (4, 0)),
        (9, 0, (16, 0)),
        (17, 0, (20, 0)),
        (0, 1, (0, 16)),
        (0, 17, (0, 32)),
        (0, 256, (0, 256)),
        (1, 200, (20, 256)),
        (20, 16, (20, 16)),
    ],
)
def test_the_smallest_shape_with_room_is_found(rows: int, tokens: int, places: tuple[int, int]) -> None:
    shapes = StepShapes(LIMITS)
    shape = shapes.find(make_batch(rows, tokens))
    assert shape is not None
    assert (shape.num_decode_rows, shape.num_prefill_tokens) == places
    assert shape in shapes.all()


@pytest.mark.parametrize(("rows", "places"), [(1, 32), (32, 32), (33, 100), (100, 100)])
def test_a_mixed_step_of_few_rows_does_not_compute_all_places(rows: int, places: int) -> None:
    shapes = StepShapes(StepLimits(max_num_seqs=100, max_num_batched_tokens=200, num_pages=8))
    shape = shapes.find(make_batch(rows, 40))
    assert shape is not None
    assert (shape.num_decode_rows, shape.num_prefill_tokens) == (places, 48)
    assert shape in shapes.all()


def test_steps_that_no_shape_has_room_for() -> None:
    shapes = StepShapes(LIMITS)
    assert shapes.find(make_batch(1, 257)) is None
    targets = PromptLogprobTargets(pack_int32([0]), pack_int32([1]), 0)
    assert shapes.find(msgspec.structs.replace(make_batch(0, 16), prompt_logprobs=targets)) is None


def test_the_largest_shapes_come_first() -> None:
    shapes = StepShapes(LIMITS)
    counts = [shape.num_tokens for shape in shapes.all()]
    assert counts == sorted(counts, reverse=True)
    assert len(set(shapes.all())) == len(counts) == 6 + 2 * 8
    assert set(shapes.largest()) <= set(shapes.all())
    assert max(shape.columns().num_bytes for shape in shapes.all()) == shapes.largest()[0].columns().num_bytes


def test_no_shape_has_more_rows_than_a_step() -> None:
    for shape in StepShapes(LIMITS).all():
        assert shape.num_head_tokens <= 20
        assert shape.num_prefill_rows <= min(20, shape.num_prefill_tokens)
