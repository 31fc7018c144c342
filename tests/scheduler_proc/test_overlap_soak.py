"""Random requests with a step in flight or planned ahead: every token right, nothing lost or doubled, nothing left."""

import logging

import pytest

from tests.scheduler_proc.overlapped import OverlappedBench
from tests.scheduler_proc.soak import MAX_MODEL_LEN
from tests.scheduler_proc.timed_soak import TimedSoak


@pytest.mark.timeout(300)
def test_hundreds_of_requests_lose_nothing():
    bench = OverlappedBench(num_pages=48, max_model_len=MAX_MODEL_LEN, max_num_seqs=12, max_num_batched_tokens=64)
    soak = TimedSoak(21, 700, bench, rich_share=0.05)
    soak.run()
    soak.check()
    gauges = bench.scheduler.gauges()
    assert gauges["steps_ahead"] == bench.device.num_ahead > 0.8 * gauges["steps"]
    assert bench.device.num_ghosts > 60
    assert gauges["preemptions"] > 0
    reasons = {end.finish_reason for end in bench.inbox.finished.values()}
    assert reasons == {"stop", "length", "abort", "timeout"}


@pytest.mark.timeout(300)
def test_rows_that_sit_out_lose_nothing_either():
    bench = OverlappedBench(num_pages=56, max_model_len=MAX_MODEL_LEN, max_num_seqs=12, max_num_batched_tokens=64)
    soak = TimedSoak(23, 300, bench, rich_share=0.5)
    soak.run()
    soak.check()
    assert bench.device.num_known > 15
    assert bench.device.num_ahead > 0.5 * bench.scheduler.gauges()["steps"]


@pytest.mark.timeout(300)
def test_failing_steps_and_rows_cost_no_one_else_a_token(caplog: pytest.LogCaptureFixture):
    """Tokens behind which a step raises or a row has no logits, and now and then a launch or a step that just fails."""
    caplog.set_level(logging.CRITICAL, "sluice.scheduler")
    bench = OverlappedBench(num_pages=40, page_size=4, max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=48)
    bench.runner.poison, bench.runner.nan = {41}, {42, 43}
    soak = TimedSoak(22, 400, bench, rich_share=0.1)
    bench.device.fails = lambda where: soak.chance.random() < 0.02
    soak.run()
    soak.check()
    assert bench.device.num_ahead > 200
    reasons = {end.finish_reason for end in bench.inbox.finished.values()}
    assert reasons == {"stop", "length", "abort", "timeout", "error"}
