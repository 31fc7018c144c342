"""State slots: where a prefix hits, what is evicted; that no state is lost, stored twice, or one of other tokens."""

from typing import Any

import pytest

from messages.ring.cache import CacheExplained, ExplainCache
from messages.ring.requests import AbortMsg
from scheduler_proc.deciding.pages import state_plans
from scheduler_proc.deciding.pages.state_slots import StateSlots
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.overlapped import OverlappedBench, OverlappedRunner
from tests.scheduler_proc.planned_ahead import AheadBench
from tests.scheduler_proc.simulated_runner import SimulatedPages, expected_output

SIZE = 4
IDS = [token % VOCAB_SIZE for token in range(200)]


def make_bench(num_slots: int = 20, interval: int = 100, **changes: Any) -> Bench:
    shape: dict[str, Any] = {"num_pages": 200, "max_model_len": 256, "max_num_batched_tokens": 64}
    return Bench(page_size=SIZE, states=(num_slots, interval), eos_token_id=-1, **shape | changes)


def run(bench: Bench, uid: int, ids: list[int], max_tokens: int = 1) -> int:
    """Runs one request; returns how many of its tokens were cached."""
    message = user_msg(uid, ids, max_tokens, ignore_eos=True)
    bench.send(message)
    bench.run()
    assert bench.output(uid) == expected_output(ids, message.sampling_params, VOCAB_SIZE, 256)
    return bench.end(uid).usage.cached_tokens


def test_the_same_prompt_and_the_next_turn_of_a_conversation_hit():
    bench = make_bench()
    assert run(bench, 1, IDS[:50], 30) == 0
    assert run(bench, 2, IDS[:50]) == 40
    turn = [*IDS[:50], *bench.output(1)]
    assert run(bench, 3, [*turn, 3, 3, 3]) == 76, "the last page of the output that was computed"


@pytest.mark.parametrize("num_rewritten", range(9))
@pytest.mark.parametrize("length", range(60, 68))
def test_the_next_turn_hits_though_it_replaces_the_end_of_the_prompt(num_rewritten, length):
    bench = make_bench()
    run(bench, 1, IDS[:length], 5)
    turn = [*IDS[: length - num_rewritten], *[1] * 9]
    assert run(bench, 2, turn) == (length - 8) // SIZE * SIZE


def test_a_prompt_that_leaves_the_cached_text_leaves_a_checkpoint_there():
    bench = make_bench()
    run(bench, 1, IDS[:100])
    assert run(bench, 2, [*IDS[:42], 1, 1]) == 0
    assert run(bench, 3, [*IDS[:42], 2, 2]) == 40
    assert run(bench, 4, [*IDS[:41], 2, 2]) == 40


def test_checkpoints_that_a_long_prompt_passed_are_evicted_before_those_at_the_ends_of_chats():
    bench = make_bench(8, 1)
    turns = {}
    for chat in range(3):
        ids = [10 + chat] * 30
        run(bench, chat, ids, 9)
        turns[chat] = [*ids, *bench.output(chat)]
    run(bench, 3, IDS)
    for chat, turn in turns.items():
        assert run(bench, 10 + chat, [*turn, 3, 3]) == 36, "the last page of the output that was computed"


def test_what_the_next_turn_has_passed_is_evicted_before_places_where_texts_part():
    bench = make_bench(7)
    system, turn = IDS[:40], [*IDS[:40], *IDS[9:19]]
    for uid in range(2):
        run(bench, uid, [*system, *[uid] * 9])
    assert run(bench, 2, [*system, 2, 2]) == 40, "the place where the first two part"
    for uid in range(3, 7):
        run(bench, uid, turn, 9)
        turn = [*turn, *bench.output(uid), *IDS[5:14]]
    assert run(bench, 7, [*system, 3, 3]) == 40, "it has outlived older turns, though it was used before them"
    assert run(bench, 8, turn) >= len(turn) - 10 - SIZE


@pytest.mark.parametrize("interval", [1, 3, 10])
def test_a_long_prompt_has_checkpoints_at_intervals(interval):
    bench = make_bench(60, interval)
    run(bench, 1, IDS)
    for num_same in range(1, 200, 7):
        other = (IDS[num_same] + 1) % VOCAB_SIZE
        num_pages = num_same // SIZE
        hit = run(bench, 2 + num_same, [*IDS[:num_same], other, other])
        assert hit >= num_pages // interval * interval * SIZE
        assert hit <= num_pages * SIZE


def test_requests_with_one_prefix_wait_for_its_checkpoint_instead_of_computing_it():
    bench = make_bench(num_slots=20, max_num_seqs=16, max_num_batched_tokens=32)
    prefix = IDS[:120]
    run(bench, 1, [*prefix, *IDS[:20]])
    bench.runner.batches.clear()
    bench.send(*(user_msg(uid, [*prefix, uid, uid, 1], 4, ignore_eos=True) for uid in range(10, 20)))
    bench.run()
    hits = [bench.end(uid).usage.cached_tokens for uid in range(10, 20)]
    assert hits[0] == 0
    computed = sum(len(batch.token_ids) // 4 for batch in bench.runner.batches)
    assert hits[1:] == [120] * 9
    assert computed == 123 + 9 * 3 + 10 * 3


def test_the_work_to_find_a_checkpoint_in_work_grows_with_the_prompts_and_not_with_their_pairs(monkeypatch):
    """Each page of a prompt is hashed at most once, however many prompts with the same beginning are compared."""
    num_hashed = 0

    def count(value: object) -> int:
        nonlocal num_hashed
        num_hashed += 1
        return hash(value)

    monkeypatch.setattr(state_plans, "hash", count, raising=False)
    counts = []
    for num_prompts in (8, 32):
        num_hashed = 0
        bench = make_bench(num_slots=2 * num_prompts + 8, max_num_seqs=64, max_num_batched_tokens=32, num_pages=2_000)
        prompts = [[*IDS[:150], uid, uid, 1] for uid in range(num_prompts)]
        bench.send(*(user_msg(uid, prompt, 4, ignore_eos=True) for uid, prompt in enumerate(prompts)))
        bench.run()
        assert min(bench.end(uid).usage.cached_tokens for uid in range(1, num_prompts)) == 144
        assert 0 < num_hashed <= sum(len(prompt) // SIZE for prompt in prompts)
        counts.append(num_hashed)
    assert counts[1] <= 5 * counts[0]


def test_choices_of_one_prompt_compute_it_once():
    bench = make_bench(num_slots=20, max_num_seqs=16, max_num_batched_tokens=32)
    bench.send(*(user_msg(uid, IDS[:122], 4, ignore_eos=True, temperature=1.0, seed=uid) for uid in range(8)))
    bench.run()
    assert sum(len(batch.token_ids) // 4 for batch in bench.runner.batches) < 122 + 8 * 6


def test_the_least_recently_used_checkpoint_is_evicted():
    bench = make_bench(num_slots=4)
    prompts = [[first, *IDS[:49]] for first in range(5)]
    for uid, prompt in enumerate(prompts[:3]):
        run(bench, uid, prompt)
    assert run(bench, 10, prompts[0]) == 40
    run(bench, 11, prompts[3])
    run(bench, 12, prompts[4])
    assert bench.gauge("state_checkpoints_evicted") > 0
    assert run(bench, 13, prompts[1]) == 0
    assert bench.gauge("pages_cached") > 48, "the pages themselves are still cached"


def test_explain_reports_how_deep_pages_match_and_how_deep_a_checkpoint_allows():
    bench = make_bench()
    run(bench, 1, IDS[:100])
    answer = bench.cache.answer(ExplainCache(7, user_msg(7, IDS[:50]).input_ids))
    assert isinstance(answer, CacheExplained)
    assert (answer.num_hit_tokens, answer.ended_by, answer.position, answer.sources) == (0, "no_checkpoint", 48, ())
    answer = bench.cache.answer(ExplainCache(7, user_msg(7, IDS[:93]).input_ids))
    assert isinstance(answer, CacheExplained)
    assert (answer.num_hit_tokens, answer.ended_by) == (92, "page_not_full")


def test_an_output_has_one_checkpoint_besides_those_of_its_prompt():
    bench = make_bench()
    run(bench, 1, IDS[:50], 60)
    assert bench.gauge("state_checkpoints") == 2


def test_the_checkpoint_of_an_output_moves_to_the_cached_page_that_replaces_its_own():
    bench = make_bench()
    bench.send(user_msg(1, IDS[:10], 30, ignore_eos=True))
    for _ in range(20):
        bench.step()
    bench.send(user_msg(2, IDS[:10], 22, ignore_eos=True))
    bench.run()
    output = bench.output(1)
    assert run(bench, 3, [*IDS[:10], *output[:22], 1, 1]) == 28, "of the shorter one, which ended last"
    assert run(bench, 4, [*IDS[:10], *output, 1, 1]) == 36


def test_a_request_waits_until_another_leaves_it_a_slot():
    bench = make_bench(num_slots=2)
    bench.send(*(user_msg(uid, [uid] * 40, 6, ignore_eos=True) for uid in (1, 2, 3)))
    waited: set[str | None] = set()
    while bench.step():
        waited.add(bench.scheduler._policy.notes.waits_for)
    assert "state_slots" in waited
    assert bench.gauge("preemptions") == 0
    bench.check_idle()


def test_a_request_of_higher_priority_gets_the_slot_of_a_row_that_gives_way():
    bench = make_bench(num_slots=2)
    bench.send(user_msg(1, IDS[:40], 20, ignore_eos=True, priority=1000))
    for _ in range(4):
        bench.step()
    bench.send(user_msg(2, IDS[9:40], 4, ignore_eos=True), user_msg(3, IDS[19:40], 4, ignore_eos=True))
    bench.run()
    assert bench.gauge("preemptions") > 0
    for uid, ids, count in ((1, IDS[:40], 20), (2, IDS[9:40], 4), (3, IDS[19:40], 4)):
        params = user_msg(uid, ids, count, ignore_eos=True).sampling_params
        assert bench.output(uid) == expected_output(ids, params, VOCAB_SIZE, 256)


def test_a_successor_continues_from_the_checkpoints_that_are_intact():
    pages = SimulatedPages(200, SIZE, num_state_slots=20)
    bench = make_bench(pages=pages)
    message = user_msg(1, IDS[:50], 40, ignore_eos=True)
    bench.send(message, user_msg(2, IDS[60:90], 40, ignore_eos=True))
    for _ in range(21):
        bench.step()
    known = bench.output(1), bench.output(2)
    pages.state_slots[_slot_of(bench, 2)] = (4, 4)
    successor = make_bench(pages=pages)
    successor.send(user_msg(1, IDS[:50], 40, 1, known[0], ignore_eos=True))
    successor.send(user_msg(2, IDS[60:90], 40, 1, known[1], ignore_eos=True))
    successor.run()
    assert successor.gauge("recomputed_tokens") <= SIZE + 1 + len(known[1]) + SIZE, "all but the latest checkpoint"
    expected = expected_output(IDS[:50], message.sampling_params, VOCAB_SIZE, 256)
    assert known[0] + successor.output(1, 1) == expected


def _slot_of(bench: Bench, uid: int) -> int:
    """Returns the slot of the latest checkpoint of a row's output."""
    slots = bench.cache.find_observer(StateSlots)
    assert slots is not None
    page = slots.rows[uid].rolling_page
    assert page is not None
    slot = slots.find_slot(page)
    assert slot is not None
    return slot


class AloneBench(OverlappedBench):
    """Each step is committed before the next one is planned."""

    def make_device(self) -> OverlappedRunner:
        device = super().make_device()
        device.can_overlap = False
        return device


@pytest.mark.parametrize("make", [OverlappedBench, AheadBench, AloneBench])
@pytest.mark.parametrize("max_num_batched_tokens", [3, 16, 256])
@pytest.mark.parametrize("is_sharing", [True, False])
def test_rows_of_a_step_that_fails_are_computed_again_and_only_the_cause_fails(
    make, max_num_batched_tokens, is_sharing
):
    """Without sharing they have no checkpoints, so that prompt and output are computed again, in many steps."""
    bench = make(
        page_size=SIZE,
        states=(5, 100),
        num_pages=200,
        max_model_len=256,
        max_num_batched_tokens=max_num_batched_tokens,
        is_sharing=is_sharing,
    )
    messages = [user_msg(uid, [uid, *[3, 5, 8] * 9], 14, ignore_eos=True) for uid in range(3)]
    outputs = [
        expected_output([uid, *[3, 5, 8] * 9], messages[uid].sampling_params, VOCAB_SIZE, 256) for uid in range(3)
    ]
    place, poison = next(
        (place, token)
        for place, token in enumerate(outputs[1])
        if place > 4 and token not in (*outputs[0], *outputs[2], *outputs[1][:place], 0, 1, 2, 3, 5, 8)
    )
    bench.runner.poison = {poison}
    bench.send(*messages)
    bench.run()
    assert [bench.output(uid) for uid in (0, 2)] == [outputs[0], outputs[2]]
    assert bench.end(1).finish_reason == "error"
    assert bench.output(1) == outputs[1][: place + 1]
    assert [bench.end(uid).finish_reason for uid in (0, 2)] == ["length"] * 2


def test_an_aborted_row_of_a_step_in_flight_does_not_disturb_the_next_owner_of_its_slot():
    bench = OverlappedBench(page_size=SIZE, states=(2, 100), num_pages=200, max_model_len=256, eos_token_id=-1)
    bench.send(user_msg(1, IDS[:20], 30, ignore_eos=True))
    for _ in range(5):
        bench.step()
    bench.send(AbortMsg(1, 0))
    message = user_msg(2, IDS[30:60], 9, ignore_eos=True)
    bench.send(message)
    bench.run()
    assert bench.output(2) == expected_output(IDS[30:60], message.sampling_params, VOCAB_SIZE, 256)
