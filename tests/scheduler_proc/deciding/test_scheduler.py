"""Messages in, replies out: attempts, continuations, refusals, stamps and usage."""

import pytest

from messages.columns import pack_int32
from messages.ring.replies import CacheFlushed, DetokenizeMsg, OpenStream
from messages.ring.requests import AbortMsg, DropBefore, FlushCache, FramesLost, StopSeen
from messages.ring.uids import first_uid_of
from tests.scheduler_proc.clients import EOS, VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_runner import expected_output

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
PARAMS = {"ignore_eos": True, "temperature": 0.7, "seed": 11, "top_k": 20, "top_p": 0.9}
FREE_RUN = expected_output(PROMPT, user_msg(0, PROMPT, max_tokens=30, **PARAMS).sampling_params, VOCAB_SIZE, 64)


def test_the_stream_is_opened_before_anything_is_computed():
    bench = Bench()
    message = user_msg(4, PROMPT, stop=("x", "yz"), include_stop_str_in_output=True, skip_special_tokens=False)
    bench.scheduler.receive(message)
    opened = OpenStream(4, 0, ("x", "yz"), True, False, b"", 0, prompt_ids=message.input_ids)
    assert bench.scheduler.pop_replies() == [opened]


@pytest.mark.parametrize("num_known", [1, 5, 8, 29])
def test_a_continuation_continues_as_the_undisturbed_request(num_known):
    bench = Bench()
    known = FREE_RUN[:num_known]
    bench.send(user_msg(1, PROMPT, max_tokens=30, attempt=2, output_ids=known, **PARAMS))
    assert bench.inbox.opened[1, 2].output_ids == pack_int32(known)
    bench.run()
    assert bench.output(1, 2) == FREE_RUN[num_known:]
    usage = bench.end(1, 2).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT), 30)
    assert bench.end(1, 2).finish_reason == "length"


def test_a_continuation_counts_no_hits_beyond_its_prompt():
    bench = Bench()
    bench.send(user_msg(1, PROMPT, max_tokens=20, **PARAMS))
    bench.run()
    bench.send(user_msg(1, PROMPT, max_tokens=30, attempt=1, output_ids=FREE_RUN[:15], **PARAMS))
    assert sum(bench.step().values()) < len(PROMPT)
    bench.run()
    assert bench.end(1, 1).usage.cached_tokens == len(PROMPT)
    assert bench.output(1, 1) == FREE_RUN[15:]


@pytest.mark.parametrize(
    ("output_ids", "params", "reason", "by_token"),
    [
        (FREE_RUN[:6], {"max_tokens": 6, "ignore_eos": True}, "length", False),
        ([2, 2, EOS], {"max_tokens": 6}, "stop", True),
        ([2, 2, 8], {"max_tokens": 6, "stop_token_ids": (8,)}, "stop", True),
        ([], {"max_tokens": 0}, "length", False),
        ([2] * 56, {"max_tokens": 100}, "length", False),
    ],
)
def test_a_continuation_that_is_at_its_end_ends_at_once(output_ids, params, reason, by_token):
    bench = Bench()
    bench.send(user_msg(1, PROMPT, attempt=1, output_ids=output_ids, **params))
    end = bench.end(1, 1)
    assert (end.finish_reason, end.ended_by_token) == (reason, by_token)
    assert end.usage.completion_tokens == len(output_ids)
    assert bench.step() == {}


@pytest.mark.parametrize("num_steps", [0, 1, 4])
def test_a_newer_attempt_replaces_the_older_silently(num_steps):
    bench = Bench(max_num_batched_tokens=6)
    bench.send(user_msg(1, PROMPT, max_tokens=30, **PARAMS))
    for _ in range(num_steps):
        bench.step()
    known = bench.output(1)[:]
    bench.send(user_msg(1, PROMPT, max_tokens=30, attempt=1, output_ids=known, **PARAMS))
    bench.run()
    assert list(bench.inbox.finished) == [(1, 1)]
    assert known + bench.output(1, 1) == FREE_RUN


def test_messages_of_an_older_attempt_are_dropped():
    bench = Bench()
    bench.send(user_msg(1, PROMPT, max_tokens=30, attempt=3, **PARAMS))
    bench.send(user_msg(1, PROMPT, attempt=3), user_msg(1, PROMPT, attempt=2), AbortMsg(1, 2), StopSeen(1, 2))
    assert list(bench.inbox.opened) == [(1, 3)]
    bench.run()
    assert bench.output(1, 3) == FREE_RUN


def test_an_abort_of_a_newer_attempt_ends_the_older():
    bench = Bench()
    bench.send(user_msg(1, PROMPT), AbortMsg(1, 1))
    assert bench.end(1).finish_reason == "abort"


def test_requests_that_have_lost_their_client_end_as_aborts_wherever_they_are():
    bench = Bench(max_num_seqs=3, max_num_batched_tokens=6)
    prompts = {uid: [uid, *PROMPT] for uid in (1, 2, 3, 4)} | {9: PROMPT}
    for uid, prompt in prompts.items():
        bench.send(user_msg(uid, prompt, max_tokens=30, attempt=uid % 2, **PARAMS))
    while bench.gauge("decoding") < 2:
        bench.step()
    assert bench.gauge("prefilling") == 1
    assert bench.gauge("waiting") == 2
    bench.send(DropBefore(9))
    assert {key: row.finish_reason for key, row in bench.inbox.finished.items()} == dict.fromkeys(
        [(1, 1), (2, 0), (3, 1), (4, 0)], "abort"
    )
    assert bench.inbox.dropped_before == 9, "the detokenizer may know more of them"
    bench.run()
    assert bench.output(9, 1) == FREE_RUN


def test_requests_of_the_frontends_that_live_are_not_dropped():
    bench = Bench()
    living, gone, late = (first_uid_of(block) + 1 for block in (1, 2, 3))
    bench.send(user_msg(living, PROMPT, max_tokens=30, **PARAMS), user_msg(gone, [7, *PROMPT], max_tokens=30, **PARAMS))
    bench.step()
    bench.send(
        DropBefore(first_uid_of(3), (1,)), user_msg(gone + 1, PROMPT), user_msg(living + 1, PROMPT, max_tokens=2)
    )
    assert bench.end(gone).finish_reason == "abort"
    assert bench.inbox.dropped_before == first_uid_of(3)
    bench.send(user_msg(late, PROMPT, max_tokens=30, **PARAMS))
    bench.run()
    assert bench.output(living) == bench.output(late) == FREE_RUN
    assert bench.end(living + 1).finish_reason in ("stop", "length")
    assert (gone + 1, 0) not in bench.inbox.opened


def test_a_request_of_a_dead_frontend_that_comes_late_is_not_taken():
    bench = Bench()
    bench.send(DropBefore(9), DropBefore(5), user_msg(8, PROMPT), AbortMsg(8, 0), StopSeen(8, 0))
    assert bench.inbox.opened == {}
    bench.check_idle()
    bench.send(user_msg(9, PROMPT, max_tokens=30, **PARAMS))
    bench.run()
    assert bench.output(9) == FREE_RUN


def test_the_timeline_is_stamped_in_order():
    bench = Bench()
    bench.send(user_msg(1, PROMPT, max_tokens=3, ignore_eos=True))
    bench.run()
    stamps = bench.end(1).stamps
    assert stamps.received_ns == 1
    assert 1 < stamps.queued_ns <= stamps.first_scheduled_ns <= stamps.first_token_ns <= stamps.finished_ns


def test_a_request_that_never_ran_has_no_stamps_of_a_run():
    bench = Bench()
    bench.send(user_msg(1, PROMPT), AbortMsg(1, 0))
    stamps = bench.end(1).stamps
    assert stamps.first_scheduled_ns == stamps.first_token_ns == 0
    assert stamps.queued_ns <= stamps.finished_ns


def test_cached_tokens_are_those_of_the_prefix_cache():
    bench = Bench()
    for uid in (1, 2):
        bench.send(user_msg(uid, PROMPT * 2, max_tokens=2, ignore_eos=True))
        bench.run()
    assert bench.end(1).usage.cached_tokens == 0
    assert bench.end(2).usage.cached_tokens == 12, "the last token of a prompt of 16 is computed, so 3 pages are found"
    assert bench.output(1) == bench.output(2)
    assert bench.gauge("prefix_hit_tokens") == 12
    assert bench.gauge("prompt_tokens") == 32


def test_what_a_prompt_took_is_notified_with_its_first_token():
    bench = Bench()
    for uid in (1, 2):
        bench.send(user_msg(uid, PROMPT, max_tokens=6, **PARAMS))
        while (uid, 0) not in bench.inbox.prefilled:
            assert not bench.inbox.tokens[uid, 0]
            bench.step()
        assert len(bench.inbox.tokens[uid, 0]) == 1
        bench.run()
        usage = bench.end(uid, 0).usage
        reported = bench.inbox.prefilled[uid, 0]
        assert (reported.prompt_tokens, reported.cached_tokens) == (usage.prompt_tokens, usage.cached_tokens)
    assert [bench.inbox.prefilled[uid, 0].cached_tokens > 0 for uid in (1, 2)] == [False, True]


def test_salts_share_nothing():
    bench = Bench()
    for uid, salt in enumerate(("", "a", "b", "a")):
        bench.send(user_msg(uid, PROMPT * 2, max_tokens=2, ignore_eos=True, cache_salt=salt))
        bench.run()
    assert [bench.end(uid).usage.cached_tokens for uid in range(4)] == [0, 0, 0, 12]


def test_without_prefix_caching_nothing_is_cached():
    bench = Bench(is_sharing=False)
    for uid in (1, 2):
        bench.send(user_msg(uid, PROMPT * 2, max_tokens=20, **PARAMS))
        bench.run()
    assert bench.gauge("pages_free") == bench.gauge("pages_all")
    assert bench.end(2).usage.cached_tokens == 0
    assert bench.output(1) == bench.output(2)


def test_the_cache_is_emptied_where_nothing_runs():
    bench = Bench()
    bench.send(user_msg(1, PROMPT * 4, max_tokens=1))
    bench.run()
    cached = bench.gauge("pages_cached")
    assert cached == 8
    bench.send(FlushCache(7))
    assert bench.inbox.flushed == [CacheFlushed(7, 8, 0)]
    assert bench.gauge("pages_free") == bench.gauge("pages_all")
    assert bench.gauge("cache_nodes") == 0
    bench.send(FlushCache(8))
    assert bench.inbox.flushed[-1] == CacheFlushed(8, 0, 0)
    bench.send(user_msg(2, PROMPT * 4, max_tokens=1))
    bench.run()
    assert bench.end(2).usage.cached_tokens == 0


def test_the_cache_is_kept_while_requests_run_unless_it_must_go():
    bench = Bench(max_num_seqs=1)
    bench.send(user_msg(1, [9] * 21, max_tokens=1))
    bench.run()
    bench.send(user_msg(2, PROMPT, max_tokens=30, **PARAMS), user_msg(3, [7] * 9, max_tokens=3, ignore_eos=True))
    bench.step()
    before = bench.scheduler.gauges()
    bench.send(FlushCache(9))
    assert bench.inbox.flushed == [CacheFlushed(9, 0, 2)]
    assert bench.scheduler.gauges() == before
    bench.send(FlushCache(10, is_forced=True))
    assert bench.inbox.flushed[-1] == CacheFlushed(10, 5, 0)
    assert bench.gauge("pages_cached") == 2, "those of the running request"
    assert bench.gauge("pages_in_use") == 2 + bench.gauge("pages_held")
    bench.run()
    assert bench.output(2) == FREE_RUN


def test_tokens_and_endings_are_counted():
    bench = Bench(max_num_seqs=2)
    bench.send(user_msg(1, PROMPT, 3, ignore_eos=True), user_msg(2, [], 3), user_msg(3, PROMPT, 9, ignore_eos=True))
    bench.send(user_msg(4, PROMPT), user_msg(5, PROMPT, 5, stop_token_ids=tuple(range(VOCAB_SIZE))))
    bench.step()
    bench.send(AbortMsg(3, 0), AbortMsg(4, 0, "timeout"))
    num_before = len(bench.output(3))
    bench.run()
    names = ("stop", "length", "abort", "timeout", "error")
    assert {name: bench.gauge(f"finished_{name}") for name in names} == dict.fromkeys(names, 1)
    assert bench.gauge("output_tokens") == 3 + num_before + 1


def test_tokens_of_a_step_are_one_message():
    bench = Bench()
    bench.send(*(user_msg(uid, PROMPT, max_tokens=4, ignore_eos=True) for uid in range(5)))
    bench.step()
    bench.step()
    batch = bench.scheduler.schedule()
    assert batch is not None
    bench.scheduler.commit(bench.runner.run(batch))
    replies = bench.scheduler.pop_replies()
    assert len(replies) == 1
    assert isinstance(replies[0], DetokenizeMsg)
    assert replies[0].step_id == batch.step_id
    assert len(replies[0].uids) == 8 * 5


def test_a_closed_queue_lets_rows_finish_and_gives_no_new_ones():
    bench = Bench()
    bench.send(user_msg(1, PROMPT, max_tokens=6, **PARAMS))
    bench.step()
    assert not bench.scheduler.pop_drained()
    bench.scheduler.close_queue()
    bench.send(user_msg(2, PROMPT, max_tokens=6, **PARAMS))
    bench.send(user_msg(3, PROMPT, max_tokens=6, **PARAMS))
    while bench.step():
        pass
    assert bench.end(1).finish_reason == "length"
    assert bench.scheduler.num_waiting == 2
    assert bench.output(2) == []
    assert bench.scheduler.pop_drained()
    assert not bench.scheduler.pop_drained(), "it is told once"
    bench.send(AbortMsg(2, 0))
    assert bench.end(2).finish_reason == "abort"
    assert bench.scheduler.num_waiting == 1


def test_an_idle_scheduler_has_drained_as_soon_as_its_queue_is_closed():
    bench = Bench()
    bench.scheduler.close_queue()
    assert bench.scheduler.pop_drained()


def test_word_of_lost_frames_is_passed_on_in_its_place():
    bench = Bench()
    lost = FramesLost("scheduler", 5, 7, 7)
    bench.scheduler.receive(user_msg(1, PROMPT, max_tokens=6, **PARAMS))
    bench.scheduler.receive(lost)
    bench.scheduler.receive(user_msg(2, PROMPT, max_tokens=6, **PARAMS))
    first, second, third = bench.scheduler.pop_replies()
    assert isinstance(first, OpenStream)
    assert second == lost
    assert isinstance(third, OpenStream)
