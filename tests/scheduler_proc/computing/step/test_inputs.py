import msgspec
import pytest
import torch

from messages.columns import pack_int32, unpack_int32
from messages.ring.axes import slice_columns
from messages.ring.steps import ROW, Batch, PromptLogprobTargets
from scheduler_proc.computing.step.features.adapters import ADAPTERS
from scheduler_proc.computing.step.features.states import find_state_rows
from scheduler_proc.computing.step.packing import (
    StepShape,
    make_step_inputs,
    pack_step,
    shape_of,
    view_step,
)
from scheduler_proc.computing.step.rewritten_batches import as_decode_rows, with_known_tokens
from tests.scheduler_proc.computing.drive import Row, plan_batch

CPU = torch.device("cpu")

STATES = frozenset({"states"})


def mixed_batch():
    """Two decode rows, a chunk that does not end its prompt, and one that does."""
    rows = [
        (Row(0, [5, 6, 7], 2, num_computed=2, pages=[4]), 1),
        (Row(1, [8] * 18, 17, num_computed=17, pages=[2, 9]), 1),
        (Row(2, [10, 11, 12, 13], 4, num_computed=1, pages=[0]), 2),
        (Row(3, [14, 15], 2, pages=[7]), 2),
    ]
    return plan_batch(3, rows, 16)


def test_columns_become_tensors() -> None:
    step = make_step_inputs(mixed_batch(), CPU)
    assert step.token_ids.tolist() == [7, 8, 11, 12, 14, 15]
    assert step.positions.tolist() == [2, 17, 1, 2, 0, 1]
    assert step.slots.tolist() == [66, 145, 1, 2, 112, 113]
    assert step.slots.dtype == torch.int64
    assert step.num_decode_rows == 2
    assert step.decode_page_tables.tolist() == [[4, -1], [2, 9]]
    assert step.decode_num_keys.tolist() == [3, 18]
    assert step.prefill_page_tables.tolist() == [[0, -1], [7, -1]]
    assert step.prefill_query_lens.tolist() == [2, 2]
    assert step.prefill_context_lens.tolist() == [1, 0]
    assert step.head_tokens.tolist() == [0, 1, 5]


def test_rows_of_last_tokens() -> None:
    rows = make_step_inputs(mixed_batch(), CPU).head_rows
    assert rows is not None
    assert rows.query_lens.tolist() == [0, 1]
    assert rows.context_lens.tolist() == [3, 1]
    verified = msgspec.structs.replace(mixed_batch(), sample_tokens=pack_int32([0, 1, 4, 5]))
    rows = make_step_inputs(verified, CPU).head_rows
    assert rows is not None
    assert (rows.query_lens.tolist(), rows.context_lens.tolist()) == ([0, 2], [3, 0])


@pytest.mark.parametrize("tokens", [[0, 1, 3, 4], [0, 5], [1, 0, 5], [0, 1, 5, 4]])
def test_other_tokens_have_no_rows(tokens: list[int]) -> None:
    """One that is not its row's last, a decode row too few, and tokens in another order."""
    batch = msgspec.structs.replace(mixed_batch(), sample_tokens=pack_int32(tokens))
    assert make_step_inputs(batch, CPU).head_rows is None


def test_tokens_of_the_step_before_are_filled_in() -> None:
    """The second row got none, and the third was not in that step."""
    rows = [(Row(uid, [5, token], 2, num_computed=1, pages=[uid]), 1) for uid, token in enumerate((0, 0, 7, 0))]
    batch = msgspec.structs.replace(plan_batch(3, rows, 16), future_token_indices=pack_int32([2, 0, -1, 1]))
    known = with_known_tokens(batch, pack_int32([-1, 31, 32]))
    assert unpack_int32(known.token_ids).tolist() == [32, 0, 7, 31]
    assert known == msgspec.structs.replace(batch, token_ids=known.token_ids, future_token_indices=b"")


def test_tokens_that_all_yield_a_next_one_are_decode_rows() -> None:
    rows = [
        (Row(0, [5, 6, 7], 2, num_computed=2, pages=[4]), 1),
        (Row(1, [8] * 18, 2, num_computed=15, pages=[2, 9]), 3),
    ]
    batch = msgspec.structs.replace(plan_batch(3, rows, 16), sample_tokens=pack_int32(range(4)))
    assert make_step_inputs(batch, CPU).prefill_query_lens.tolist() == [3]
    step = make_step_inputs(as_decode_rows(batch), CPU)
    assert step.num_decode_rows == 4
    assert step.decode_num_keys.tolist() == [3, 16, 17, 18]
    assert step.decode_page_tables.tolist() == [[4, -1], [2, 9], [2, 9], [2, 9]]
    assert step.slots.tolist() == [66, 47, 144, 145]
    assert not len(step.prefill_query_lens)
    assert as_decode_rows(as_decode_rows(batch)) == as_decode_rows(batch)


def with_states(sources: list[int], slots: list[int], batch: Batch) -> Batch:
    return msgspec.structs.replace(batch, state_sources=pack_int32(sources), state_slots=pack_int32(slots))


def test_rows_read_and_store_recurrent_states() -> None:
    batch = with_states([4, 2, 7, -1], [4, 3, -1, 7, 9, 0], mixed_batch())
    shape = StepShape(4, num_prefill_tokens=6, num_prefill_rows=4, num_pages=3, num_head_tokens=5, features=STATES)
    columns = shape.columns()
    buffer = torch.full((columns.num_bytes,), 7, dtype=torch.uint8)
    pack_step(batch, shape, columns.arrays(buffer))
    for step, unused in ((make_step_inputs(batch, CPU), []), (view_step(shape, columns.tensors(buffer)), [-1, -1])):
        rows = find_state_rows(step)
        rows.check(len(step.token_ids))
        assert rows.decode_sources.tolist() == [4, 2, *unused]
        assert rows.prefill_sources.tolist() == [7, -1, *unused]
        assert rows.prefill_lens.tolist() == [2, 2, *[0] * len(unused)]
        assert rows.slots.tolist() == [4, 3, *unused, -1, 7, 9, 0, *unused]


def test_rows_that_all_begin_have_no_column_of_sources() -> None:
    """It is dropped from a slice of a step, as all of its entries are what an empty column means."""
    batch = slice_columns(with_states([4, 2, 7, -1], [4, 3, -1, 7, 9, 0], mixed_batch()), ROW, 3, 4, num_decode_rows=0)
    assert batch.state_sources == b""
    rows = find_state_rows(make_step_inputs(batch, CPU))
    assert (rows.prefill_sources.tolist(), rows.slots.tolist()) == ([-1], [9, 0])


def test_without_recurrent_layers_a_step_has_no_columns_of_states() -> None:
    columns = shape_of(mixed_batch()).columns()
    assert "state_slots" not in columns.arrays(torch.zeros(columns.num_bytes, dtype=torch.uint8))
    with pytest.raises(AssertionError):
        _ = find_state_rows(make_step_inputs(mixed_batch(), CPU))


def test_each_token_of_a_row_that_becomes_decode_rows_reads_what_the_one_before_stores() -> None:
    rows = [
        (Row(0, [5, 6, 7], 2, num_computed=2, pages=[4]), 1),
        (Row(1, [8] * 18, 2, num_computed=15, pages=[2, 9]), 3),
    ]
    batch = msgspec.structs.replace(plan_batch(3, rows, 16), sample_tokens=pack_int32(range(4)))
    step = make_step_inputs(as_decode_rows(with_states([6, 5], [6, 5, 1, 3], batch)), CPU)
    assert find_state_rows(step).decode_sources.tolist() == [6, 5, 5, 1]
    assert find_state_rows(step).slots.tolist() == [6, 5, 1, 3]
    begun = as_decode_rows(msgspec.structs.replace(batch, state_slots=pack_int32([6, 5, 1, 3])))
    assert find_state_rows(make_step_inputs(begun, CPU)).decode_sources.tolist() == [-1, -1, 5, 1]


def test_tokens_with_prompt_logprobs_go_to_the_head_after_those_that_sample() -> None:
    batch = msgspec.structs.replace(
        mixed_batch(), prompt_logprobs=PromptLogprobTargets(pack_int32([2, 3, 4]), pack_int32([12, 13, 15]), 1)
    )
    assert make_step_inputs(batch, CPU).head_tokens.tolist() == [0, 1, 5, 2, 3, 4]


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_logprobs": PromptLogprobTargets(pack_int32([6]), pack_int32([1]), 0)},
        {"positions": pack_int32([1])},
        {"query_lens": pack_int32([1, 2, 2, 1])},
        {"slots": b""},
    ],
)
def test_columns_that_do_not_fit_together_are_a_bug(changes: dict[str, bytes]) -> None:
    with pytest.raises(AssertionError):
        make_step_inputs(msgspec.structs.replace(mixed_batch(), **changes), CPU)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((4, 0, 0, 8, 4), True), ((4, 16, 4, 8, 6), False), ((0, 16, 4, 8, 16), False), ((0, 4, 4, 8, 4), False)],
    ids=["decode", "mixed", "prefill", "one token a prompt"],
)
def test_nothing_is_gathered_where_each_token_of_a_shape_goes_to_the_head(
    sizes: tuple[int, int, int, int, int], expected: bool
) -> None:
    shape = StepShape(*sizes)
    columns = shape.columns()
    step = view_step(shape, columns.tensors(torch.zeros(columns.num_bytes, dtype=torch.uint8)))
    assert step.all_go_to_head == expected


def test_a_step_with_room_to_spare_is_padded() -> None:
    """Prefill tokens come after all places for decode rows; what is left over writes nothing and reads nothing."""
    shape = StepShape(num_decode_rows=4, num_prefill_tokens=6, num_prefill_rows=3, num_pages=3, num_head_tokens=5)
    columns = shape.columns()
    buffer = torch.full((columns.num_bytes,), 7, dtype=torch.uint8)
    batch = msgspec.structs.replace(mixed_batch(), future_token_indices=pack_int32([1, -1]))
    pack_step(batch, shape, columns.arrays(buffer))
    step = view_step(shape, columns.tensors(buffer))
    assert step.num_decode_rows == 4
    assert step.token_ids.tolist() == [7, 8, 0, 0, 11, 12, 14, 15, 0, 0]
    assert step.positions.tolist() == [2, 17, 0, 0, 1, 2, 0, 1, 0, 0]
    assert step.slots.tolist() == [66, 145, -1, -1, 1, 2, 112, 113, -1, -1]
    assert step.future_token_indices.tolist() == [1, -1, -1, -1]
    assert step.decode_page_tables.tolist() == [[4, -1, -1], [2, 9, -1], [-1] * 3, [-1] * 3]
    assert step.decode_num_keys.tolist() == [3, 18, 0, 0]
    assert step.prefill_page_tables.tolist() == [[0, -1, -1], [7, -1, -1], [-1] * 3]
    assert step.prefill_query_lens.tolist() == [2, 2, 0]
    assert step.prefill_context_lens.tolist() == [1, 0, 0]
    assert step.head_tokens.tolist() == [0, 1, 7, 0, 0]


def test_page_tables_may_be_wider_than_any_request_is_long() -> None:
    shape = StepShape(num_decode_rows=2, num_prefill_tokens=4, num_prefill_rows=2, num_pages=1, num_head_tokens=3)
    arrays = shape.columns().arrays(torch.empty(shape.columns().num_bytes, dtype=torch.uint8))
    pack_step(mixed_batch(), shape, arrays)
    assert arrays["decode_page_tables"].tolist() == [[4], [2]]


def test_each_token_has_the_adapter_of_its_row() -> None:
    rows = [
        (Row(0, [5, 6], 1, num_computed=1, pages=[4], adapter_slot=2), 1),
        (Row(1, [6, 7, 8], 3, num_computed=1, pages=[2]), 2),
        (Row(2, [9, 9, 9], 1, pages=[1], adapter_slot=0), 3),
    ]
    batch = msgspec.structs.replace(plan_batch(0, rows, 16), sample_tokens=pack_int32(range(6)))
    for each in (batch, as_decode_rows(batch)):
        slots_T = make_step_inputs(each, CPU).view(ADAPTERS)
        assert slots_T is not None
        assert slots_T.tolist() == [2, -1, -1, 0, 0, 0]
    assert make_step_inputs(msgspec.structs.replace(batch, adapter_slots=b""), CPU).view(ADAPTERS) is None
