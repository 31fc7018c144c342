"""Requests with spans: what is cached for whom, what every token sees, what is refused."""

import random

import pytest
from msgspec.structs import replace

from messages.columns import pack_int32, unpack_int32
from messages.errors import RequestError
from messages.ring.dry import Dry
from messages.ring.requests import UserMsg
from messages.ring.spans import PromptSpan
from scheduler_proc.deciding.drafting.draft_planner import DraftPlanner
from scheduler_proc.deciding.drafting.drafts import NgramDrafter
from scheduler_proc.deciding.placed_spans import PlacedSpans
from scheduler_proc.deciding.requests import PendingReq, State
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding.step_plan import Budget
from tests.scheduler_proc.clients import EOS, VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_drafter import AllDrafts
from tests.scheduler_proc.simulated_runner import SimulatedPages, expected_output
from tests.scheduler_proc.simulated_spans import SimulatedSpanRows, span_of
from tests.scheduler_proc.simulated_store import SimulatedStore
from tests.scheduler_proc.soak import MAX_MODEL_LEN, Soak

PROMPT = [(7 * place) % VOCAB_SIZE for place in range(30)]


def ask(bench: Bench, uid: int, *spans: PromptSpan, prompt: list[int] = PROMPT, **params: object) -> UserMsg:
    for span in spans:
        bench.span_rows.place(span)
    return replace(user_msg(uid, prompt, **params), spans=spans)


def serve(bench: Bench, uid: int, *spans: PromptSpan) -> int:
    """Runs a request alone; returns how many of its tokens were cached."""
    message = ask(bench, uid, *spans)
    bench.send(message)
    bench.run()
    expected = expected_output(PROMPT, message.sampling_params, VOCAB_SIZE, MAX_MODEL_LEN, (EOS,), spans)
    assert bench.output(uid) == expected
    return bench.end(uid).usage.cached_tokens


@pytest.mark.parametrize(("start", "length"), [(8, 1), (11, 1), (11, 2), (12, 9), (0, 1), (0, 24)])
def test_pages_before_a_span_are_shared_by_all_and_those_from_it_on_by_equal_digests(start, length):
    bench, before = Bench(), start // 4 * 4
    assert serve(bench, 1, span_of(start, length, 1)) == 0
    assert serve(bench, 2, span_of(start, length, 1)) == 28
    assert serve(bench, 3, span_of(start, length, 2)) == before
    assert serve(bench, 4) == before
    assert serve(bench, 5, span_of(start, length, 2)) == serve(bench, 6) == 28


def test_a_new_span_behind_a_known_one_leaves_the_known_one_cached():
    bench, first = Bench(), span_of(4, 5, 1)
    serve(bench, 1, first)
    assert serve(bench, 2, first, span_of(17, 6, 2)) == 16
    assert serve(bench, 3, first, span_of(17, 6, 2)) == 28
    assert serve(bench, 4, first, span_of(17, 6, 3)) == 16


def test_requests_that_run_together_share_pages_of_equal_spans_alone():
    bench = Bench(max_num_batched_tokens=8)
    spans = [span_of(6, 9, number % 2) for number in range(4)]
    messages = [ask(bench, uid, span) for uid, span in enumerate(spans)]
    bench.send(*messages)
    bench.run()
    for uid, message in enumerate(messages):
        expected = expected_output(PROMPT, message.sampling_params, VOCAB_SIZE, 64, (EOS,), message.spans)
        assert bench.output(uid) == expected
    assert bench.output(0) == bench.output(2) != bench.output(1) == bench.output(3)
    assert bench.gauge("prefix_hit_tokens") >= 2 * 24


def test_a_successor_finds_the_pages_of_a_span():
    pages = SimulatedPages(40, 4)
    assert serve(Bench(pages=pages), 1, span_of(9, 6, 1)) == 0
    bench = Bench(pages=pages)
    assert bench.gauge("pages_recovered") > 0
    assert serve(bench, 2, span_of(9, 6, 2)) == 8
    assert serve(bench, 3, span_of(9, 6, 1)) == 28


def test_an_evicted_page_of_a_span_returns_for_its_digest_alone():
    bench = Bench(17, 4, 64, store=SimulatedStore(4))
    serve(bench, 1, span_of(9, 6, 1))
    bench.send(user_msg(2, [3] * 50, max_tokens=10))
    bench.run()
    assert serve(bench, 3, span_of(9, 6, 2)) <= 8
    bench.send(user_msg(4, [3] * 50, max_tokens=10))
    bench.run()
    assert serve(bench, 5, span_of(9, 6, 1)) == 28


def test_rows_of_requests_are_needed_until_they_end():
    bench, span, others = (
        Bench(span_rows=SimulatedSpanRows(10)),
        span_of(3, 4),
        [span_of(0, 3, number) for number in range(5)],
    )
    bench.send(ask(bench, 1, span, max_tokens=40))
    bench.step()
    for other in others:
        bench.span_rows.place(other)
    with pytest.raises(ValueError, match="no room for 7 rows"):
        bench.span_rows.place(span_of(0, 7))
    bench.run()
    bench.send(ask(bench, 2, span), ask(bench, 3, others[-1]))
    bench.run()
    bench.send(replace(user_msg(4, PROMPT), spans=(others[0],)))
    assert "no rows" in str(bench.end(4).error), "the least recently placed made room"


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ((span_of(28, 3),), "within the prompt of 30 tokens"),
        ((span_of(3, 3), span_of(5, 1)), "not overlap"),
        ((PromptSpan(3, 3, b"short"),), "5 bytes, not 16"),
        ((PromptSpan(3, 3, span_of(0, 4).digest),), "no rows for span 0, which needs 3"),
        ((PromptSpan(3, 3, bytes(16)),), "no rows for span 0, which needs 3"),
    ],
)
def test_a_bad_span_ends_its_request_alone(spans, reason):
    bench = Bench()
    bench.span_rows.place(span_of(0, 4))
    bench.send(user_msg(2, PROMPT), replace(user_msg(1, PROMPT), spans=spans))
    error = bench.end(1).error
    assert error is not None
    assert error.status == 400
    assert reason in error.message
    bench.run()
    assert bench.output(2)


def test_small_pages_and_a_model_without_rows_take_no_spans():
    bench = Bench(page_size=2)
    bench.send(ask(bench, 1, span_of(3, 4)))
    assert "--block-size is below 4" in str(bench.end(1).error)
    PlacedSpans(None, 4).refuse(user_msg(2, PROMPT))
    with pytest.raises(RequestError, match="takes no spans"):
        PlacedSpans(None, 4).refuse(ask(bench, 2, span_of(3, 4)))


def test_a_repetition_in_the_placeholders_is_not_drafted():
    bench, output = Bench(), pack_int32([4, 4])
    with_span = replace(ask(bench, 1, span_of(2, 9), prompt=[1, 2, *[4] * 9, 5, 6]), output_ids=output)
    for message, token_ids in ((with_span, []), (replace(with_span, spans=()), [5, 6])):
        req = bench.cache.open(PendingReq(message, bench.limits, 0))
        assert list(NgramDrafter(2).propose(req, 2).token_ids) == token_ids


def test_what_followed_a_prefix_is_drafted_up_to_a_span_and_behind_one_of_the_same_digest():
    bench = Bench()
    bench.send(ask(bench, 1, span_of(9, 5, 1), max_tokens=10))
    bench.run()
    whole = [*PROMPT, *bench.output(1)]

    def find(num_tokens: int, *spans: PromptSpan) -> list[int]:
        req = bench.cache.open(PendingReq(ask(bench, 2, *spans, prompt=whole[:num_tokens]), bench.limits, 0))
        req.pending.state = State.PREFILL
        bench.cache.find_prefix(req)
        found = list(bench.cache.find_continuation(req, 100))
        bench.cache.close(req)
        return found

    assert find(3) == PROMPT[3:8]
    assert find(18, span_of(9, 5, 1)) == whole[18:36]
    assert find(18, span_of(9, 5, 2)) == find(18) == find(10, span_of(9, 1, 1)) == []


def test_penalties_count_the_text_alone():
    bench = Bench()
    bench.send(ask(bench, 1, span_of(2, 26), max_tokens=3, presence_penalty=0.5, dry=Dry(1.0, 2.0, 1, -1, ())))
    bench.run()
    first, second, _ = bench.runner.batches
    for batch, output in ((first, []), (second, bench.output(1)[:1])):
        assert batch.logits_processing is not None
        assert list(unpack_int32(batch.logits_processing.history_ids)) == [*PROMPT[:2], *PROMPT[28:], *output]
        assert unpack_int32(batch.logits_processing.num_history_prompt).tolist() == [4]
        assert not batch.logits_processing.bias_ids


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "needs",
    [{}, {"windows": (9, 30)}, {"states": (16, 3)}, {"store": 25}, {"pages": True}],
    ids=["plain", "windows", "states", "tiers", "journal"],
)
def test_hundreds_of_mixed_requests_with_spans_lose_nothing(needs):
    num_pages = 60 if {"windows", "states"} & set(needs) else 40
    if "store" in needs:
        needs = {"store": SimulatedStore(4, needs["store"], random.Random(1))}
    if "pages" in needs:
        needs = {"pages": SimulatedPages(num_pages, 4)}
    bench = Bench(num_pages, 4, MAX_MODEL_LEN, max_num_batched_tokens=48, **needs)
    soak = Soak(31, 300, bench, span_share=0.7)
    soak.run()
    soak.check()
    assert bench.gauge("preemptions") > 0
    assert bench.gauge("prefix_hit_tokens") > 10


@pytest.mark.timeout(300)
def test_drafts_from_texts_with_spans_lose_nothing():
    bench = Bench(num_pages=40, page_size=4, max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=48)
    planner = DraftPlanner(bench.cache, NgramDrafter(5, bench.cache), AllDrafts())
    bench.scheduler = Scheduler(bench.cache, bench.limits, Budget(8, 48), planner, bench.grammars)
    soak = Soak(32, 300, bench, span_share=0.7)
    soak.run()
    soak.check()
    assert bench.gauge("draft_tokens") > 2
