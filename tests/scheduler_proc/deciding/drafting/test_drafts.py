"""Verification of draft tokens: which are accepted, which rows may have some, and that rejected ones leave no trace."""

from array import array
from collections.abc import Sequence

import pytest

from messages.columns import pack_int32, unpack_int32
from messages.ring.requests import AbortMsg, StopSeen
from messages.ring.steps import Batch, ForwardOutput
from scheduler_proc.computing.step.packing import only_samples
from scheduler_proc.deciding.drafting.drafts import Draft
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.row_results import num_accepted
from scheduler_proc.deciding.sampling.grammars import RequestGrammar
from tests.scheduler_proc.clients import EOS, VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.overlapped import OverlappedBench
from tests.scheduler_proc.planned_ahead import AheadBench, AheadRunner
from tests.scheduler_proc.simulated_grammar import grammar_of
from tests.scheduler_proc.simulated_runner import check_shapes, expected_logprobs, expected_output

PROMPT = [3, 1, 4, 1, 5]


class Proposals:
    """Proposes the given drafts and records the requested numbers of tokens."""

    def __init__(self, *drafts: Sequence[int]):
        self.drafts = list(drafts)
        self.limits: list[int] = []

    def propose(self, req: Req, max_tokens: int) -> Draft:
        self.limits.append(max_tokens)
        drafts = self.drafts.pop(0)[:max_tokens] if self.drafts else []
        return Draft(array("i", drafts), [1.0] * len(drafts))


@pytest.mark.parametrize(
    ("drafts", "sampled", "expected"),
    [
        ([], [5], 1),
        ([1, 2, 3], [1, 2, 3, 4], 4),
        ([1, 2, 3], [1, 2, 9, 4], 3),
        ([1, 2, 3], [9, 2, 3, 4], 1),
        ([1, 2, 3], [1, 2], 2),
        ([1, 2, 3], [-1, -1, -1, -1], 1),
        ([1, 2], [], 0),
        ([], [], 0),
    ],
)
def test_right_drafts_and_the_token_after_them_count(drafts, sampled, expected):
    assert num_accepted(array("i", drafts), sampled) == expected


def planned(bench: Bench) -> Batch:
    batch = bench.scheduler.schedule()
    assert batch is not None
    bench.scheduler.check()
    check_shapes(batch)
    return batch


def commit(bench: Bench, batch: Batch, tokens: Sequence[int], num_tokens: Sequence[int] = ()) -> None:
    output = ForwardOutput(batch.step_id, pack_int32(tokens), num_tokens=pack_int32(num_tokens))
    bench.scheduler.commit(output)
    bench.scheduler.check()
    bench.inbox.take(bench.scheduler.pop_replies())


def decoding(drafter: Proposals, *messages, **settings) -> Bench:
    """Returns a bench whose requests have had their first token, 11, 12 and so on."""
    bench = Bench(drafter=drafter, **settings)
    bench.send(*messages)
    first = planned(bench)
    commit(bench, first, range(11, 11 + len(messages)))
    return bench


def test_a_row_with_drafts_feeds_and_samples_at_each():
    requests = [user_msg(uid, [uid, *PROMPT[1:]], 20, ignore_eos=True, seed=uid, temperature=1.0) for uid in (1, 2, 3)]
    bench = decoding(Proposals([], [21, 22], [31]), *requests)
    batch = planned(bench)
    assert (batch.phase, batch.num_decode_rows) == ("mixed", 1)
    assert list(unpack_int32(batch.query_lens)) == [1, 3, 2]
    assert list(unpack_int32(batch.num_drafts)) == [0, 2, 1]
    assert list(unpack_int32(batch.token_ids)) == [11, 12, 21, 22, 13, 31]
    assert list(unpack_int32(batch.positions)) == [5, 5, 6, 7, 5, 6]
    assert list(unpack_int32(batch.sample_tokens)) == [0, 1, 2, 3, 4, 5]
    assert list(array("q", batch.sample_positions)) == [6, 6, 7, 8, 6, 7]
    assert list(array("q", batch.seeds)) == [1, 2, 2, 2, 3, 3]
    commit(bench, batch, [40, 21, 22, 43, 9, 44])
    assert [bench.output(uid) for uid in (1, 2, 3)] == [[11, 40], [12, 21, 22, 43], [13, 9]]
    batch = planned(bench)
    assert (batch.phase, batch.num_drafts) == ("decode", b"")
    assert list(unpack_int32(batch.token_ids)) == [40, 43, 9]
    assert list(unpack_int32(batch.positions)) == [6, 8, 6]


def test_a_row_that_got_no_token_is_computed_again():
    bench = Bench(drafter=Proposals())
    bench.send(user_msg(1, PROMPT, 20, ignore_eos=True), user_msg(2, PROMPT[1:], 20, ignore_eos=True))
    commit(bench, planned(bench), [12], [0, 1])
    assert (bench.output(1), bench.output(2)) == ([], [12])
    batch = planned(bench)
    assert list(unpack_int32(batch.query_lens)) == [1, 1]
    assert list(unpack_int32(batch.token_ids)) == [12, PROMPT[-1]], "the prompt's last token again"
    assert list(unpack_int32(batch.sample_tokens)) == [0, 1]
    commit(bench, batch, [11], [0, 1])
    assert (bench.output(1), bench.output(2)) == ([11], [12])
    batch = planned(bench)
    assert list(unpack_int32(batch.token_ids)) == [12, 11]
    assert list(unpack_int32(batch.positions)) == [4, 5]


def test_a_run_goes_over_the_borders_of_pages_and_a_wrong_one_leaves_no_trace():
    drafter = Proposals([1] * 9, [2] * 9)
    bench = decoding(drafter, user_msg(1, PROMPT, 40, ignore_eos=True), page_size=4)
    commit(bench, planned(bench), [9] * 10)
    assert bench.output(1) == [11, 9]
    assert bench.gauge("pages_held") == 3, "of 15 tokens' four pages one is shared; the others are kept"
    commit(bench, planned(bench), [2] * 10)
    assert bench.output(1) == [11, 9, *[2] * 10]
    batch = planned(bench)
    (position,), (slot,) = unpack_int32(batch.positions), array("q", batch.slots)
    table = unpack_int32(batch.page_tables)
    assert position == 16
    assert slot == table[4] * 4
    bench.send(AbortMsg(1, 0))
    assert bench.gauge("pages_cached") == 4, "of 17 tokens 16 are computed"
    assert bench.gauge("pages_held") == 0


@pytest.mark.parametrize(
    ("params", "sampled", "expected", "reason"),
    [
        ({}, [21, EOS, 23, 24], [11, 21, EOS], "stop"),
        ({"stop_token_ids": (22,), "ignore_eos": True}, [21, 22, 23, 24], [11, 21, 22], "stop"),
        ({"ignore_eos": True, "max_tokens": 4}, [21, EOS, 23], [11, 21, EOS, 23], "length"),
    ],
)
def test_a_run_ends_where_the_row_does(params, sampled, expected, reason):
    drafter = Proposals([21, sampled[1], 23])
    bench = decoding(drafter, user_msg(1, PROMPT, **{"max_tokens": 20, **params}))
    commit(bench, planned(bench), sampled)
    assert bench.output(1) == expected
    end = bench.end(1)
    assert (end.finish_reason, end.usage.completion_tokens) == (reason, len(expected))
    bench.check_idle()


def test_a_row_without_logits_in_a_run_fails_after_what_was_right():
    bench = decoding(Proposals([21, 22, 23]), user_msg(1, PROMPT, 20, ignore_eos=True))
    commit(bench, planned(bench), [21, -1, 23, 24])
    assert bench.output(1) == [11, 21]
    assert bench.end(1).finish_reason == "error"
    assert bench.end(1).usage.completion_tokens == 2
    bench.check_idle()


def test_no_more_drafts_than_tokens_may_follow():
    drafter = Proposals([1] * 9, [1] * 9, [1] * 9)
    bench = decoding(drafter, user_msg(1, PROMPT, 4, ignore_eos=True), user_msg(2, PROMPT[1:], 2))
    batch = planned(bench)
    assert drafter.limits == [2], "with one token to come there is nothing to draft"
    assert list(unpack_int32(batch.query_lens)) == [1, 3]
    commit(bench, batch, [5, 1, 1, 5])
    assert [bench.output(uid) for uid in (1, 2)] == [[11, 1, 1, 5], [12, 5]]
    bench.check_idle()


def test_drafts_have_what_prompts_leave_of_a_step():
    drafter = Proposals([1] * 9)
    bench = decoding(drafter, user_msg(1, PROMPT, 30, ignore_eos=True), max_num_batched_tokens=10)
    bench.send(user_msg(2, [2] * 7, 5))
    batch = planned(bench)
    assert drafter.limits == [2]
    assert list(unpack_int32(batch.query_lens)) == [7, 3]
    assert list(unpack_int32(batch.num_drafts)) == [0, 2]


def test_a_row_without_pages_for_its_drafts_continues_without():
    drafter = Proposals([], [1] * 9)
    bench = decoding(drafter, user_msg(1, PROMPT, 11, ignore_eos=True), num_pages=5, max_model_len=16)
    bench.send(user_msg(2, [2] * 7, 3))
    commit(bench, planned(bench), [12, 21])
    assert bench.gauge("pages_in_use") == 4
    batch = planned(bench)
    assert drafter.limits[1] == 8
    assert not batch.num_drafts
    commit(bench, batch, [13, 22])
    assert (bench.output(1), bench.output(2)) == ([11, 12, 13], [21, 22])


@pytest.mark.parametrize("message", [AbortMsg(1, 0), StopSeen(1, 0), user_msg(1, PROMPT, 20, attempt=1)])
def test_a_row_that_ended_meanwhile_gets_nothing_of_its_run(message):
    bench = decoding(Proposals([21, 22], [31]), user_msg(1, PROMPT, 20), user_msg(2, PROMPT[1:], 20))
    batch = planned(bench)
    bench.send(message)
    commit(bench, batch, [21, 22, 23, 31, 33])
    assert (bench.output(1), bench.output(2)) == ([11], [12, 31, 33])


def test_penalties_bans_and_logprobs_are_those_of_each_token():
    params = {"presence_penalty": 0.5, "num_logprobs": 2, "min_tokens": 9, "bad_word_ids": (pack_int32([4, 5]),)}
    message = user_msg(1, PROMPT, 12, **params)
    expected = expected_output(PROMPT, message.sampling_params, VOCAB_SIZE, 64, (EOS,))
    drafts = [expected[1:5], [expected[6], 49, 49], expected[8:]]
    bench = Bench(drafter=Proposals(*drafts))
    bench.send(message)
    assert bench.run() < len(expected)
    assert bench.output(1) == expected
    assert bench.inbox.logprobs[1, 0] == expected_logprobs(PROMPT + expected, len(PROMPT), 2, VOCAB_SIZE)


def test_no_step_is_planned_behind_one_with_drafts():
    message = user_msg(1, PROMPT, 12, ignore_eos=True)
    expected = expected_output(PROMPT, message.sampling_params, VOCAB_SIZE, 64)
    bench = OverlappedBench(drafter=Proposals(expected[1:4], expected[5:7], expected[8:]))
    bench.send(message)
    bench.run()
    assert bench.output(1) == expected
    drafted = [batch for batch in bench.runner.batches if batch.num_drafts]
    assert drafted
    assert bench.gauge("steps_ahead") == 0


class Rare:
    """Proposes nothing for 4 tokens after each search, except in the first two after the 9th token."""

    def __init__(self, output: list[int]):
        self.output = output
        self.found_at: list[int] = []

    def propose(self, req: Req, max_tokens: int) -> Draft:
        num_output = len(req.token_ids) - len(PROMPT)
        if num_output >= 9 and len(self.found_at) < 2:
            self.found_at.append(num_output)
            return Draft(array("i", self.output[num_output : num_output + 3]), [1.0] * 3)
        return Draft(array("i"), (), len(req.token_ids) + 4)


def test_rare_searches_run_behind_the_step_in_flight_and_the_step_after_the_plan_has_the_drafts(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(AheadRunner, "has_ended", lambda _, launched: not only_samples(launched.batch))
    monkeypatch.setattr(AheadBench, "has_news", lambda _: False)
    message = user_msg(1, PROMPT, 30, ignore_eos=True)
    drafter = Rare(expected_output(PROMPT, message.sampling_params, VOCAB_SIZE, 64))
    bench = AheadBench(drafter=drafter)
    bench.send(message)
    bench.run()
    assert bench.output(1) == drafter.output[:30]
    assert drafter.found_at[1] == drafter.found_at[0] + 2, (
        "without the token in flight, and with it and the planned one"
    )
    assert bench.gauge("accepted_tokens") == 3
    assert bench.gauge("steps_ahead") == bench.gauge("steps") - 4, "the prompt, the first search, the drafts, and after"


class Idle:
    """Proposes nothing, and is not to be asked for 32 tokens."""

    def propose(self, req: Req, max_tokens: int) -> Draft:
        return Draft(array("i"), (), len(req.token_ids) + 32)


def test_a_grammar_is_asked_in_each_step_however_seldom_texts_are_searched(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    monkeypatch.setattr(RequestGrammar, "forced_ids", lambda self, limit: (asked.append(limit), array("i"))[1])
    bench = Bench(drafter=Idle())
    bench.send(user_msg(1, PROMPT, 20, grammar=grammar_of(30, 3), ignore_eos=True))
    bench.run()
    assert len(bench.output(1)) == 20
    assert asked == list(range(18, 0, -1)), "all but the last token, which may have no draft"
