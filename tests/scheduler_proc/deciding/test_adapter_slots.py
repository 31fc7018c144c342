"""Slots of LoRA adapters: each row is computed with its adapter, none waits for ever, KV never crosses adapters."""

from typing import Any

import pytest

from messages.columns import pack_int32
from messages.ring.adapters import Adapter
from messages.ring.requests import AbortMsg, UserMsg
from messages.ring.timeline import ScheduleReport
from scheduler_proc.deciding.adapter_slots import PASS_NS
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.radix import RadixTree
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.requests import Limits, PendingReq
from scheduler_proc.deciding.rows.decode_rows import DecodeRows
from scheduler_proc.deciding.sampling.endings import LENGTH
from tests.scheduler_proc.clients import EOS, VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_adapters import SimulatedAdapters, make_adapter
from tests.scheduler_proc.simulated_runner import expected_output
from tests.scheduler_proc.soak import MAX_MODEL_LEN

IDS = [token % VOCAB_SIZE for token in range(60)]


def ask(uid: int, adapter: Adapter | None, max_tokens: int = 8, received_ns: int = 1, **params: Any) -> UserMsg:
    salt = "" if adapter is None else adapter.digest
    message = user_msg(uid, IDS[:20], max_tokens, adapter=adapter, cache_salt=salt, ignore_eos=True, **params)
    stamps = type(message.stamps)(received_ns=received_ns)
    return UserMsg(uid, 0, message.input_ids, message.sampling_params, stamps)


def make_bench(num_slots: int, **shape: Any) -> Bench:
    return Bench(adapters=SimulatedAdapters(num_slots).slots, **shape)


def check_output(bench: Bench, message: UserMsg) -> None:
    params = message.sampling_params
    assert bench.output(message.uid) == expected_output(IDS[:20], params, VOCAB_SIZE, MAX_MODEL_LEN, (EOS,))


def test_rows_of_several_adapters_and_of_the_model_run_in_one_step():
    bench = make_bench(2)
    messages = [ask(uid, make_adapter(uid) if uid else None) for uid in range(3)]
    bench.send(*messages)
    assert bench.run() < 14
    for message in messages:
        check_output(bench, message)
    assert len({tuple(bench.output(uid)) for uid in range(3)}) == 3
    assert any(batch.num_rows == 3 for batch in bench.runner.batches)


def test_a_step_without_adapters_is_that_of_a_server_without_them():
    bench, plain = make_bench(2), Bench()
    bench.send(ask(0, make_adapter(1)))
    bench.run()
    del bench.runner.batches[:]
    for each in (bench, plain):
        each.send(ask(1, None))
        each.run()
    assert all(not batch.adapter_slots for batch in bench.runner.batches)


def test_the_prefix_cache_is_never_shared_between_adapters_and_is_with_equal_contents():
    bench = make_bench(2)
    renamed = Adapter("other name", "/elsewhere", make_adapter(1).digest)
    cached = []
    for uid, adapter in enumerate((None, make_adapter(1), make_adapter(2), make_adapter(1), renamed, None)):
        message = ask(uid, adapter)
        bench.send(message)
        bench.run()
        check_output(bench, message)
        cached.append(bench.end(uid).usage.cached_tokens)
    assert cached == [0, 0, 0, 16, 16, 16]


def test_an_adapter_of_rows_keeps_its_slot_and_the_least_recently_used_one_goes():
    adapters = SimulatedAdapters(2)
    bench = Bench(adapters=adapters.slots)
    bench.send(ask(0, make_adapter(0), 40))
    for _ in range(4):
        bench.step()
    for uid in range(1, 6):
        bench.send(ask(uid, make_adapter(uid % 3 + 1), 1))
        while uid not in {key[0] for key in bench.inbox.finished}:
            bench.step()
    bench.run()
    check_output(bench, ask(0, make_adapter(0), 40))
    assert bench.gauge("adapters_placed") == 6
    bench.send(ask(9, make_adapter(0)))
    bench.run()
    assert bench.gauge("adapters_placed") == 6, "it has kept its slot"


def test_a_request_waits_for_a_slot_with_its_reason_and_others_pass():
    bench = make_bench(1)
    bench.send(ask(0, make_adapter(0), 30))
    bench.step()
    bench.send(ask(1, make_adapter(1)), ask(2, make_adapter(0)), ask(3, None))
    for _ in range(3):
        bench.step()
    scheduler = bench.scheduler
    assert {req.uid for batch in bench.runner.batches[-1:] for req in scheduler._stages.running.values()} == {0, 2, 3}
    assert scheduler._policy.notes.waits_for == "adapter_slots"
    bench.run()
    for uid, number in ((0, 0), (1, 1), (2, 0)):
        check_output(bench, ask(uid, make_adapter(number), 30 if uid == 0 else 8))


def test_a_request_whose_adapter_is_being_read_waits_with_its_reason():
    source = SimulatedAdapters(1)
    bench = Bench(adapters=source.slots)
    bench.send(ask(0, None, 30))
    bench.step()
    source.pop_read = list  # type: ignore[method-assign]
    bench.send(ask(1, make_adapter(1)))
    bench.step()
    assert bench.scheduler._policy.notes.waits_for == "adapter"
    del source.pop_read
    bench.run()
    check_output(bench, ask(1, make_adapter(1)))


def test_the_reason_is_reported_if_there_is_nothing_to_compute_meanwhile():
    source = SimulatedAdapters(1)
    bench = Bench(adapters=source.slots)
    source.pop_read = list  # type: ignore[method-assign]
    bench.send(ask(1, make_adapter(1)))
    assert bench.scheduler.schedule() is None
    (report,) = [reply for reply in bench.scheduler.pop_replies() if isinstance(reply, ScheduleReport)]
    assert report.facts.waits_for == "adapter"
    assert [row.uid for row in report.waiting] == [1]
    assert bench.scheduler.schedule() is None
    assert not bench.scheduler.pop_replies(), "it is reported once a second"
    del source.pop_read
    bench.run()
    check_output(bench, ask(1, make_adapter(1)))


def test_what_is_received_much_later_does_not_pass_a_request_that_waits_for_a_slot():
    """A client that keeps one adapter in use does not keep another one out."""
    bench = make_bench(1, max_num_seqs=4)
    bench.send(ask(0, make_adapter(0), 12))
    bench.step()
    bench.send(ask(1, make_adapter(1), 1, received_ns=2))
    uid = 2
    while (1, 0) not in bench.inbox.finished:
        bench.send(ask(uid, make_adapter(0), 12, received_ns=uid * PASS_NS // 4))
        bench.step()
        uid += 1
        assert uid < 60, "it starves"
    bench.run()
    check_output(bench, ask(1, make_adapter(1), 1))


def test_rows_that_give_way_give_their_slot_to_others():
    bench = make_bench(1)
    bench.send(ask(0, make_adapter(0), 40, priority=1_000))
    for _ in range(3):
        bench.step()
    bench.send(ask(1, make_adapter(1), 4))
    while (1, 0) not in bench.inbox.finished:
        bench.step()
    assert (0, 0) not in bench.inbox.finished
    bench.run()
    check_output(bench, ask(0, make_adapter(0), 40, priority=1_000))
    check_output(bench, ask(1, make_adapter(1), 4))


def test_a_request_for_no_tokens_ends_when_its_adapter_has_been_read():
    source = SimulatedAdapters(1, bad=["/bad"])
    bench = Bench(adapters=source.slots)
    bench.send(ask(0, make_adapter(0), 30))
    bench.step()
    bench.send(ask(1, make_adapter(1), 0), ask(2, make_adapter(2, "/bad"), 0), ask(3, make_adapter(0), 0))
    assert bench.end(3).finish_reason == "length", "its adapter is there"
    bench.step()
    assert bench.end(1).finish_reason == "length"
    assert bench.end(2).error is not None
    assert bench.output(1) == []
    bench.run()
    assert len(bench.inbox.finished) == 4


def test_requests_whose_adapter_cannot_be_read_fail_alone():
    source = SimulatedAdapters(2, bad=["/bad"])
    bench = Bench(adapters=source.slots)
    same_contents = Adapter("good", "/good", make_adapter(1).digest)
    bench.send(ask(0, make_adapter(1, "/bad")), ask(1, same_contents), ask(2, make_adapter(2)), ask(3, None))
    bench.run()
    assert bench.end(0).error is not None
    for uid, adapter in ((1, same_contents), (2, make_adapter(2)), (3, None)):
        check_output(bench, ask(uid, adapter))


def test_without_slots_a_request_with_an_adapter_is_refused():
    bench = Bench()
    bench.send(ask(0, make_adapter(0)))
    assert "LoRA is off" in (bench.end(0).error or pytest.fail("it has no error")).message


def test_a_flood_of_adapters_is_answered_and_memory_stays_bounded():
    source = SimulatedAdapters(2)
    bench = Bench(adapters=source.slots, num_pages=80)
    messages = [ask(uid, make_adapter(uid % 25), 3) for uid in range(50)]
    bench.send(*messages)
    while bench.step():
        assert bench.gauge("adapters") <= 4
    bench.check_idle()
    for message in messages:
        check_output(bench, message)
    assert source.num_read < 60, "adapters that waited were read again and again"


def test_aborted_requests_leave_no_slot_in_use():
    bench = make_bench(1)
    bench.send(ask(0, make_adapter(0), 40), ask(1, make_adapter(1), 40))
    bench.step()
    bench.send(AbortMsg(1, 0), AbortMsg(0, 0))
    bench.send(ask(2, make_adapter(2)))
    bench.run()
    check_output(bench, ask(2, make_adapter(2)))


def test_the_adapter_of_a_row_that_had_no_step_yet_stays_in_memory():
    """A row may have to wait for its pages, which are loaded from a lower tier, while other adapters are read."""
    source = SimulatedAdapters(1)
    waiting = PendingReq(ask(0, make_adapter(0)), Limits(64, VOCAB_SIZE), 0)
    cache, row, rows = BlockAllocator(4, 4), Req(waiting, RadixTree(4).root), DecodeRows(4)
    rows.reqs.append(row)
    source.slots.prepare(waiting)
    source.slots.collect([waiting], cache)
    assert list(source.slots.admissible([waiting])) == [waiting]
    source.slots.on_admitted(row)
    for number in range(1, 6):
        load = PendingReq(ask(number, make_adapter(number), 0), Limits(64, VOCAB_SIZE), 0)
        source.slots.prepare(load)
        assert list(source.slots.admissible([load])) == []
        assert source.slots.collect([load], cache) == [(load, LENGTH)]
        source.slots.check([row], (), ())
    assert source.slots.columns(rows, []) == {"adapter_slots": pack_int32([0])}
