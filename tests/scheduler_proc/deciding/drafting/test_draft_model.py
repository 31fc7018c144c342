"""A draft model on the model's pages: it computes what it lacks, and never changes a token."""

import random
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messages.columns import pack_int32, unpack_int32
from messages.ring.requests import AbortMsg
from scheduler_proc.deciding.drafting.draft_lengths import DraftLengths
from scheduler_proc.deciding.drafting.draft_model import MAX_LACKING, DraftModel, run_draft_steps
from scheduler_proc.deciding.drafting.draft_state import UNTRIED, AcceptanceRate
from scheduler_proc.deciding.sampling.grammars import RequestGrammar
from tests.scheduler_proc.clients import EOS, VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_draft_model import MAX_DRAFTS, add_draft_model
from tests.scheduler_proc.simulated_grammar import grammar_of
from tests.scheduler_proc.simulated_runner import expected_output
from tests.scheduler_proc.soak import MAX_MODEL_LEN, Soak

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
SAMPLED = {"ignore_eos": True, "temperature": 1.0, "seed": 5}


def expected(message) -> list[int]:
    prompt = list(unpack_int32(message.input_ids))
    return expected_output(prompt, message.sampling_params, VOCAB_SIZE, 64, (EOS,))


def all_right(bench: Bench) -> bool:
    return bench.gauge("accepted_tokens") == bench.gauge("draft_tokens") > 0


def test_a_model_that_samples_alike_is_always_right_and_feeds_each_token_once():
    bench = Bench()
    draft = add_draft_model(bench)
    messages = [user_msg(uid, [uid, *PROMPT], 30, **{**SAMPLED, "seed": uid}) for uid in (1, 2, 3)]
    bench.send(*messages)
    num_steps = bench.run()
    assert [bench.output(uid) for uid in (1, 2, 3)] == [expected(message) for message in messages]
    assert all_right(bench)
    assert num_steps <= 3 + -(-29 // (MAX_DRAFTS + 1))
    lacking_each_round = 3 * num_steps  # behind a whole run that is right: its last token
    assert draft.num_fed <= 3 * (1 + len(PROMPT) + 30) + lacking_each_round


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_k": 9, "top_p": 0.8, "min_p": 0.02},
        {"presence_penalty": 0.7, "frequency_penalty": 0.3, "repetition_penalty": 1.3},
        {"stop_token_ids": (4, 9), "min_tokens": 12},
        {"num_logprobs": 2, "num_prompt_logprobs": 1},
        {"grammar": grammar_of(20, 3), "ignore_eos": False},
        {"grammar": grammar_of(9, 1), "ignore_eos": False, "presence_penalty": 0.5},
    ],
)
def test_it_samples_with_all_that_the_request_requests(params, monkeypatch):
    monkeypatch.setattr(RequestGrammar, "forced_ids", lambda self, max_num_tokens: array("i"))
    bench = Bench()
    add_draft_model(bench)
    message = user_msg(1, PROMPT, 26, **{**SAMPLED, **params})
    bench.send(message)
    bench.run()
    assert bench.output(1) == expected(message)
    assert all_right(bench)


def test_a_plan_runs_no_step_of_the_draft_model_itself():
    bench = Bench()
    draft = add_draft_model(bench)
    bench.send(user_msg(1, PROMPT, 30, **SAMPLED))
    bench.step()
    assert bench.scheduler.schedule() is None
    assert not draft.batches
    proposal = bench.scheduler.proposal
    assert proposal is not None
    batch = bench.scheduler.add_drafts(run_draft_steps(proposal, draft.run))
    assert len(draft.batches) == 1 + MAX_DRAFTS
    assert list(unpack_int32(batch.num_drafts)) == [MAX_DRAFTS]
    assert bench.scheduler.proposal is None


def test_a_row_feeds_what_it_lacks_and_no_more():
    bench = Bench(page_size=4)
    draft = add_draft_model(bench)
    bench.send(user_msg(1, PROMPT, 30, **SAMPLED))
    for _ in range(3):
        bench.step()
    lens = [list(unpack_int32(batch.query_lens)) for batch in draft.batches]
    assert lens == [[len(PROMPT)], [1], [1], [1], [1], [2], [1], [1], [1]], "the prompt, 4 drafts, what it lacks and 4"
    assert not draft.batches[0].sample_tokens


def test_a_cached_prefix_is_cached_for_the_draft_model():
    bench = Bench(page_size=4)
    draft = add_draft_model(bench)
    bench.send(user_msg(1, PROMPT * 3, 8, **SAMPLED))
    bench.run()
    draft.num_fed = 0
    bench.send(user_msg(2, PROMPT * 3, 8, **SAMPLED))
    bench.run()
    assert bench.end(2).usage.cached_tokens == 32
    assert all_right(bench)
    assert draft.num_fed <= 2 * 8, "the cached prefix was computed again"


def test_pages_that_were_never_drafted_from_are_computed_once():
    """As after a restart, in which the model's K and V are kept and the draft model's are not."""
    bench = Bench(page_size=4)
    bench.send(user_msg(1, PROMPT * 3, 6, **SAMPLED))
    bench.run()
    pages = bench.runner.slots
    draft = add_draft_model(bench)
    assert bench.runner.slots is pages
    bench.send(*(user_msg(uid, PROMPT * 3, 12, **{**SAMPLED, "seed": uid}) for uid in (2, 3)))
    bench.run()
    assert bench.end(2).usage.cached_tokens == bench.end(3).usage.cached_tokens == 32
    assert all_right(bench)
    assert draft.num_fed < 32 + 2 * 20, "two rows computed the same pages"


def test_a_page_that_was_freed_holds_nothing_of_the_draft_model():
    bench = Bench(num_pages=16, page_size=4)
    add_draft_model(bench)
    model = bench.cache.find_observer(DraftModel)
    assert model is not None
    for uid in range(1, 12):
        bench.send(user_msg(uid, [uid, 40 - uid, *PROMPT], 24, **{**SAMPLED, "seed": uid}))
        bench.run()
        assert model.pages
    assert bench.gauge("pages_evicted") > 0
    assert all_right(bench)


@pytest.mark.parametrize("num_late", [3, MAX_LACKING + 3])
def test_rows_that_were_not_drafted_for_a_while_catch_up(num_late):
    bench = Bench(page_size=4)
    draft = add_draft_model(bench, max_len=64)
    message = user_msg(1, PROMPT, 40, **SAMPLED)
    bench.send(message)
    bench.step()
    model = bench.scheduler._draft_planner._model
    model.has_failed = True
    for _ in range(num_late):
        bench.step()
    model.has_failed = False
    bench.run()
    assert bench.output(1) == expected(message)
    assert all_right(bench)
    assert draft.num_fed < len(PROMPT) + 40 + 12


def test_a_long_prompt_is_caught_up_within_the_tokens_of_a_step():
    bench = Bench(page_size=4, max_num_batched_tokens=12)
    draft = add_draft_model(bench)
    message = user_msg(1, PROMPT * 4, 18, **SAMPLED)
    bench.send(message)
    bench.run()
    assert bench.output(1) == expected(message)
    assert all_right(bench)
    assert max(batch.num_tokens for batch in draft.batches) <= 12


def test_a_draft_model_of_a_shorter_context_proposes_nothing_beyond_it():
    bench = Bench()
    draft = add_draft_model(bench, max_len=24)
    message = user_msg(1, PROMPT, 40, **SAMPLED)
    bench.send(message)
    bench.run()
    assert bench.output(1) == expected(message)
    assert all_right(bench)
    assert max(max(unpack_int32(batch.positions)) for batch in draft.batches) == 23


@pytest.mark.parametrize(("vocab_size", "model_vocab_size"), [(VOCAB_SIZE, 20), (20, VOCAB_SIZE)])
def test_an_id_that_only_one_of_them_has_is_never_fed(vocab_size, model_vocab_size):
    allowed = pack_int32(range(22))
    bench = Bench()
    draft = add_draft_model(bench, vocab_size=vocab_size, model_vocab_size=model_vocab_size)
    message = user_msg(1, [token_id % 20 for token_id in PROMPT], 40, **SAMPLED, allowed_token_ids=allowed)
    bench.send(message)
    bench.run()
    assert bench.output(1) == expected(message)
    assert draft.batches
    assert all(batch.logits_processing is None for batch in draft.batches)
    fed = max(max(unpack_int32(batch.token_ids)) for batch in draft.batches)
    proposed = [batch for batch in bench.runner.batches if batch.num_drafts]
    if vocab_size < model_vocab_size:
        assert fed < vocab_size
    else:
        behind = [token for batch in proposed for token in unpack_int32(batch.token_ids)[1:]]
        assert all(token < model_vocab_size for token in behind)


def test_a_draft_model_that_fails_is_not_asked_again(caplog):
    bench = Bench()
    draft = add_draft_model(bench)
    messages = [user_msg(uid, [uid, *PROMPT], 20, **SAMPLED) for uid in (1, 2)]
    draft.poison = {expected(messages[0])[7]}
    bench.send(*messages)
    bench.run()
    assert [bench.output(uid) for uid in (1, 2)] == [expected(message) for message in messages]
    assert "requests continue without draft tokens" in caplog.text
    num_batches = len(draft.batches)
    bench.send(user_msg(3, PROMPT, 20, **SAMPLED))
    bench.run()
    assert len(draft.batches) == num_batches


def test_logits_that_are_not_finite_end_a_draft():
    bench = Bench()
    draft = add_draft_model(bench)
    message = user_msg(1, PROMPT, 30, **SAMPLED)
    draft.nan = {expected(message)[5]}
    bench.send(message)
    bench.run()
    assert bench.output(1) == expected(message)
    assert all_right(bench)


@given(
    seed=st.integers(0, 2**32),
    page_size=st.sampled_from([1, 4, 16]),
    num_spare=st.integers(0, 12),
    max_num_seqs=st.sampled_from([1, 3, 8]),
    max_num_batched_tokens=st.sampled_from([7, 32, 256]),
    error_every=st.sampled_from([0, 1, 3, 5]),
)
@settings(max_examples=25, deadline=None)
def test_random_requests_get_what_they_must(
    seed, page_size, num_spare, max_num_seqs, max_num_batched_tokens, error_every
):
    bench = Bench(
        num_pages=MAX_MODEL_LEN // page_size + num_spare,
        page_size=page_size,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    add_draft_model(bench, error_every)
    soak = Soak(seed, 12, bench)
    soak.run()
    soak.check()


def test_a_soak_with_preemptions_in_which_all_drafts_are_right(monkeypatch):
    monkeypatch.setattr(RequestGrammar, "forced_ids", lambda self, max_num_tokens: array("i"))
    bench = Bench(num_pages=40, page_size=4, max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=48)
    add_draft_model(bench)
    soak = Soak(20, 150, bench)
    soak.run()
    soak.check()
    assert bench.gauge("preemptions") > 0
    assert bench.gauge("prefix_hit_tokens") > 0
    assert bench.gauge("accepted_tokens") > 0.95 * bench.gauge("draft_tokens") > 100


def test_an_aborted_row_leaves_nothing():
    bench = Bench()
    add_draft_model(bench)
    bench.send(user_msg(1, PROMPT, 40, **SAMPLED))
    bench.step()
    bench.step()
    bench.send(AbortMsg(1, 0))
    bench.check_idle()
    bench.scheduler.check()


class Clock:
    """Advances by the time of each step."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("draft_s", "pays"), [(0.05, True), (2.0, False)])
def test_it_drafts_as_long_as_it_pays_and_tries_again(draft_s: float, pays: bool):
    bench, clock, lengths = Bench(num_pages=400, max_model_len=1000), Clock(), DraftLengths()
    draft = add_draft_model(bench, lengths=lengths)
    model = bench.scheduler._draft_planner._model
    model._clock = clock
    run = draft.run

    def timed(batch):
        clock.now_s += draft_s
        return run(batch)

    draft.run = timed
    num_drafted, num_steps = 0, 0
    bench.send(user_msg(1, PROMPT, 600, **SAMPLED))
    while (batch := bench.plan()) is not None:
        bench.inbox.take(bench.scheduler.pop_replies())
        seconds = 1.0 + 0.02 * batch.num_tokens
        bench.scheduler.commit(bench.runner.run(batch))
        seconds += model.seconds * bool(batch.num_drafts)
        bench.scheduler.record_time(batch, seconds, seconds)
        num_steps += 1
        num_drafted += bool(batch.num_drafts)
    if pays:
        assert num_drafted > 0.9 * num_steps
    else:
        assert 1 < num_drafted < 0.2 * num_steps, "it is tried again, and seldom"


def test_new_requests_begin_with_what_is_known_of_others():
    lengths, chance = DraftLengths(), random.Random(1)
    rates = [AcceptanceRate() for _ in range(3)]
    for rate in rates:
        rate.follow(lengths.general)
    before = rates[2].value
    for _ in range(30):
        rates[chance.randrange(2)].add(4, 4)
    late = AcceptanceRate()
    late.follow(lengths.general)
    assert late.value > 0.8 > before == pytest.approx(UNTRIED)
