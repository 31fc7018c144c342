"""Steps of a head of multi-token prediction: each token at the place of the one before it, in its row's own pages."""

from array import array

from messages.columns import unpack_int32, unpack_int64
from scheduler_proc.deciding.drafting.mtp_steps import at_places_before
from scheduler_proc.deciding.pages.running_request import Chunk, Req
from scheduler_proc.deciding.rows.batch_columns import BatchBuilder
from scheduler_proc.deciding.rows.decode_rows import DecodeRows
from scheduler_proc.deciding.sampling.output_counts import OutputCounts
from tests.scheduler_proc.clients import Bench, user_msg

SIZE = 4


def make_req(bench: Bench, uid: int, token_ids: list[int], pages: list[int]) -> Req:
    bench.send(user_msg(uid, token_ids, 30))
    bench.step()
    twin = bench.scheduler._stages.running[uid].twin(array("i", token_ids))
    twin.pages = pages
    return twin


def test_places_are_those_of_the_tokens_before() -> None:
    bench = Bench(page_size=SIZE)
    in_page = make_req(bench, 1, [10, 11, 12], [5])
    at_boundary = make_req(bench, 2, [*range(20, 29)], [2, 7, 3])
    prompt = make_req(bench, 3, [*range(30, 40)], [9, 4, 8])
    rows = DecodeRows(SIZE)
    for req in (in_page, at_boundary):
        rows.append(req)
    rows.enter_pages()
    batch = BatchBuilder(16, SIZE, 64).build(0, rows, [Chunk(prompt, 1, 9, OutputCounts())])
    shifted = at_places_before(batch, SIZE)
    assert list(unpack_int64(batch.slots)) == [22, 12, 37, 38, 39, 16, 17, 18, 19, 32]
    assert list(unpack_int64(shifted.slots)) == [21, 31, 36, 37, 38, 39, 16, 17, 18, 19]
    assert list(unpack_int32(shifted.positions)) == [1, 7, *range(8)]
    assert list(unpack_int32(shifted.context_lens)) == [1, 7, 0]
    assert list(unpack_int64(shifted.hidden_slots)) == [22, 12, *[-1] * 7, 32]
    for name in ("token_ids", "page_tables", "sample_positions", "seeds", "query_lens"):
        assert getattr(shifted, name) == getattr(batch, name)
