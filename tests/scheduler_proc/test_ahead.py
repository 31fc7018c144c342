"""Steps that are planned while the one before them runs, and launched behind it: order, news, failures, every token."""

import logging

import pytest

from scheduler_proc.deciding.pages.page_journal import PageJournal
from tests.scheduler_proc.clients import user_msg
from tests.scheduler_proc.overlapped import LaunchedStep
from tests.scheduler_proc.planned_ahead import AheadBench, AheadRunner
from tests.scheduler_proc.simulated_runner import SimulatedPages
from tests.scheduler_proc.soak import MAX_MODEL_LEN
from tests.scheduler_proc.timed_soak import TimedSoak


class SlowSoak(TimedSoak):
    """Most of the time no request waits."""

    seconds_between = 14.0


class NotingRunner(AheadRunner):
    """Notes what is asked of it."""

    notes: list[str]

    def launch(self, batch):
        self.notes.append(f"launch {batch.step_id}")
        return super().launch(batch)

    def result_of(self, launched: LaunchedStep):
        self.notes.append(f"result {launched.batch.step_id}")
        return super().result_of(launched)


class NotingBench(AheadBench):
    """Notes what is planned, launched, waited for and committed; there are news while `is_news`."""

    is_news = False

    def make_device(self) -> NotingRunner:
        device = NotingRunner(self.runner, self._attempt_of)
        self.notes = device.notes = []
        schedule, commit = self.scheduler.schedule, self.scheduler.commit

        def noting_schedule():
            batch = schedule()
            self.notes += [] if batch is None else [f"plan {batch.step_id}"]
            return batch

        def noting_commit(output):
            commit(output)
            self.notes.append(f"commit {output.step_id}")

        self.scheduler.schedule, self.scheduler.commit = noting_schedule, noting_commit
        return device

    def has_news(self) -> bool:
        return self.is_news


def one_request(max_tokens: int = 4, **params) -> NotingBench:
    bench = NotingBench()
    bench.send(user_msg(1, [3, 1, 4], max_tokens, ignore_eos=True, **params))
    return bench


def test_the_next_step_is_planned_before_the_result_and_launched_before_it_is_committed():
    bench = one_request()
    bench.run()
    assert bench.notes == [
        *("plan 1", "launch 1", "result 1", "commit 1"),  # a prompt has been computed when it is launched
        *("plan 2", "launch 2", "plan 3", "result 2", "launch 3", "commit 2"),
        *("plan 4", "result 3", "launch 4", "commit 3", "result 4", "commit 4"),
    ]
    assert len(bench.output(1)) == 4


def test_with_news_the_plan_is_dropped_and_made_again():
    bench = one_request()
    bench.step()
    bench.step()
    assert bench.stepper.has_step
    bench.is_news = True
    del bench.notes[:]
    bench.step()
    assert bench.notes == ["plan 3", "result 2", "commit 2"]
    bench.send(user_msg(2, [1, 5], 2, ignore_eos=True))
    assert bench.step() == {1: 1, 2: 2}, "what has come is in the very next step"
    bench.run()
    assert (len(bench.output(1)), len(bench.output(2))) == (4, 2)


@pytest.mark.parametrize("params", [{"repetition_penalty": 1.2}, {"min_tokens": 4}], ids=["penalty", "min_tokens"])
def test_nothing_is_planned_behind_rows_whose_logits_the_next_token_changes(params: dict[str, float]):
    bench = one_request(**params)
    bench.run()
    assert bench.device.num_ahead == 0
    assert not bench.gauge("steps_ahead")


def test_nothing_is_planned_behind_a_step_while_a_prompt_waits_or_is_in_parts():
    bench = NotingBench(max_num_batched_tokens=4)
    bench.send(user_msg(1, [3, 1, 4], 20, ignore_eos=True))
    bench.step()
    bench.send(user_msg(2, list(range(1, 15)), 2, ignore_eos=True))
    for _ in range(5):
        bench.step()
        assert not bench.stepper.has_step
    assert bench.device.num_ahead == 0
    bench.run()
    assert bench.device.num_ahead > 5, "afterwards it is"


def test_a_step_that_runs_is_waited_for_and_forgotten():
    bench = one_request()
    bench.step()
    bench.step()
    assert bench.stepper.has_step
    del bench.notes[:]
    bench.stepper.close()
    assert bench.notes == ["result 2"]
    assert not bench.stepper.has_step
    bench.run()
    assert len(bench.output(1)) == 4, "it was planned again"


def test_a_full_page_is_sealed_as_soon_as_its_step_is_committed():
    """As without a plan ahead: a scheduler that dies leaves its successor no page less."""
    pages = SimulatedPages(40, 4)
    bench = AheadBench(pages=pages)
    bench.send(user_msg(1, [3, 1, 4], 20, ignore_eos=True))
    journal = bench.cache.find_observer(PageJournal)
    assert journal is not None
    num_ahead = 0
    while bench.step():
        num_ahead += bench.stepper.has_step
        num_computed = 0 if (1, 0) in bench.inbox.finished else 2 + len(bench.inbox.tokens[1, 0])
        assert len(journal.sealed_pages()) >= num_computed // 4
    assert num_ahead > 10


@pytest.mark.timeout(300)
def test_hundreds_of_requests_lose_nothing():
    bench = AheadBench(num_pages=48, max_model_len=MAX_MODEL_LEN, max_num_seqs=12, max_num_batched_tokens=64)
    soak = SlowSoak(21, 700, bench, rich_share=0.05)
    soak.run()
    soak.check()
    gauges = bench.scheduler.gauges()
    assert bench.device.num_ahead > 0.2 * gauges["steps"]
    assert bench.device.num_ghosts > 8
    assert bench.num_news > 40
    reasons = {end.finish_reason for end in bench.inbox.finished.values()}
    assert reasons == {"stop", "length", "abort", "timeout"}


@pytest.mark.timeout(300)
def test_failing_steps_and_rows_cost_no_one_else_a_token(caplog: pytest.LogCaptureFixture):
    """Tokens behind which a step raises or a row has no logits, and now and then a launch or a step that just fails."""
    caplog.set_level(logging.CRITICAL, "sluice.scheduler")
    bench = AheadBench(num_pages=40, page_size=4, max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=48)
    bench.runner.poison, bench.runner.nan = {41}, {42, 43}
    soak = SlowSoak(22, 400, bench, rich_share=0.1)
    failed: list[str] = []

    def fails(where: str) -> bool:
        does_fail = soak.chance.random() < 0.05
        failed.extend([where] * does_fail)
        return does_fail

    bench.device.fails = fails
    soak.run()
    soak.check()
    assert {"launch", "result"} == set(failed)
    assert bench.device.num_ahead > 200
    reasons = {end.finish_reason for end in bench.inbox.finished.values()}
    assert reasons == {"stop", "length", "abort", "timeout", "error"}
