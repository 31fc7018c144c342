"""The main loop as a real process, its launcher and neighbours played by the test, its model simulated."""

import logging
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from messages.channels import Receiver, Sender
from messages.config.server import CacheConfig, Config, ModelFacts
from messages.control.histograms import BOUNDS
from messages.control.processes import Beat, BootFailed, PhaseReport, Ready, Stop
from messages.errors import ChannelFullError
from messages.ring.replies import OpenStream, ToDetokenizer
from messages.ring.requests import AbortMsg, StopSeen, ToScheduler
from scheduler_proc.process import check
from scheduler_proc.reply_sender import ReplySender
from tests.fake_launcher import FakeLauncher
from tests.scheduler_proc.clients import EOS, VOCAB_SIZE, Bench, Inbox, user_msg
from tests.scheduler_proc.simulated_runner import expected_output

MODULE = "tests.scheduler_proc.simulated_process"
OVERLAPPED = "tests.scheduler_proc.overlapped_process"
AHEAD = "tests.scheduler_proc.ahead_process"
DRAFTING = "tests.scheduler_proc.drafting_process"
MAX_MODEL_LEN = 64
FACTS = ModelFacts(
    model_dir="/none",
    tokenizer_dir="/none",
    served_names=("simulated",),
    vocab_size=VOCAB_SIZE + 1,
    max_model_len=MAX_MODEL_LEN,
    eos_token_ids=(EOS,),
)


def start(launcher: FakeLauncher, module: str = MODULE) -> None:
    """Starts the process; `launcher` knows it as "scheduler" then, as it does its messages."""
    launcher.processes["scheduler"] = launcher.start(module)
    del launcher.processes[module]


class Ring:
    """A running scheduler with the test before it (tokenizer) and behind it (detokenizer)."""

    def __init__(self, launcher: FakeLauncher, module: str):
        self.launcher = launcher
        self.module = module
        self.inbox = Inbox()
        self.receiver: Receiver[ToDetokenizer] = launcher.open_receiver("detokenizer", ToDetokenizer)
        start(launcher, module)
        launcher.wait_for("scheduler", Ready)
        self.sender: Sender[ToScheduler] = launcher.open_sender("scheduler")

    def take_until_finished(self, *uids: int) -> None:
        while not all((uid, 0) in self.inbox.finished for uid in uids):
            self.inbox.take([self.launcher.take_one(self.receiver)])


@pytest.fixture(params=[MODULE, OVERLAPPED, AHEAD, DRAFTING], ids=["alone", "overlapped", "ahead", "drafting"])
def ring(request: pytest.FixtureRequest) -> Iterator[Ring]:
    config = Config(cache=CacheConfig(num_pages=40, block_size=4), facts=FACTS)
    with FakeLauncher(config) as launcher:
        yield Ring(launcher, request.param)


def test_requests_are_answered_and_the_accounts_balance(ring: Ring):
    messages = [
        user_msg(uid, [uid, 2, 3] * (1 + uid % 15), max_tokens=20, seed=uid, is_streamed=uid % 4 == 0)
        for uid in range(30)
    ]
    for message in messages:
        ring.sender.send(message)
    ring.take_until_finished(*range(30))
    for message in messages:
        prompt = [message.uid, 2, 3] * (1 + message.uid % 15)
        expected = expected_output(prompt, message.sampling_params, VOCAB_SIZE, MAX_MODEL_LEN, (EOS,))
        assert ring.inbox.tokens[message.uid, 0] == expected
    num_tokens = sum(len(tokens) for tokens in ring.inbox.tokens.values())

    def is_after_all(beat: Beat) -> bool:
        """It can be idle earlier, when the first requests have ended before the next ones come."""
        return beat.gauges["output_tokens"] >= num_tokens and beat.busy_since_ns == 0

    beat = ring.launcher.wait_for("scheduler", Beat, where=is_after_all)
    assert beat.gauges["output_tokens"] == num_tokens
    assert beat.gauges["requests"] == beat.gauges["pages_held"] == 0
    num_counted = {name: sum(histogram.counts) for name, histogram in beat.histograms.items()}
    assert num_counted.pop("grammar_seconds") == 0
    assert set(num_counted.values()) == {beat.gauges["steps"]}
    assert (beat.gauges["steps_ahead"] > 0) == (ring.module in (OVERLAPPED, AHEAD))
    assert beat.histograms.keys() == BOUNDS.keys() - {"image_seconds"}
    assert beat.gauges["pages_free"] + beat.gauges["pages_cached"] == beat.gauges["pages_all"] == 40
    assert "integrity check failed" not in ring.launcher.log_text(ring.module)


def test_an_abort_and_a_stop_string_end_rows_while_others_run(ring: Ring):
    for uid in (1, 2, 3):
        ring.sender.send(user_msg(uid, [uid] * 20, max_tokens=40, ignore_eos=True))
    ring.sender.send(AbortMsg(1, 0))
    ring.sender.send(StopSeen(2, 0))
    ring.take_until_finished(1, 2, 3)
    assert ring.inbox.finished[1, 0].finish_reason in ("abort", "length")
    assert ring.inbox.finished[2, 0].finish_reason in ("stop", "length")
    assert ring.inbox.finished[3, 0].usage.completion_tokens == 40


def test_a_step_that_raises_costs_only_the_request_at_fault(ring: Ring):
    bad = VOCAB_SIZE
    ring.sender.send(user_msg(1, [1, 2, 3], max_tokens=30, ignore_eos=True))
    ring.sender.send(user_msg(2, [4, bad, 5]))
    ring.take_until_finished(1, 2)
    error = ring.inbox.finished[2, 0].error
    assert error is not None
    assert error.status == 500
    reference = error.message.partition("reference ")[2].rstrip(")")
    log = ring.launcher.log_text(ring.module)
    assert reference in log
    assert "a poisoned token" in log, "the trace is in the log"
    params = user_msg(1, [], max_tokens=30, ignore_eos=True).sampling_params
    assert ring.inbox.tokens[1, 0] == expected_output([1, 2, 3], params, VOCAB_SIZE, MAX_MODEL_LEN)
    ring.sender.send(user_msg(3, [1, 2, 3], max_tokens=4, ignore_eos=True))
    ring.take_until_finished(3)


def test_it_reports_what_it_does_while_it_starts_and_uses_no_time_when_idle(ring: Ring):
    assert ring.launcher.wait_for("scheduler", PhaseReport) == PhaseReport("simulating", 0.5)
    process = psutil.Process(ring.launcher.processes["scheduler"].pid)
    ring.launcher.wait_for("scheduler", Beat)
    before, wakeups = process.cpu_times(), process.num_ctx_switches().voluntary
    ring.launcher.wait_for("scheduler", Beat)
    ring.launcher.wait_for("scheduler", Beat)
    after, wakeups = process.cpu_times(), process.num_ctx_switches().voluntary - wakeups
    assert after.user + after.system - before.user - before.system < 0.3
    assert wakeups <= 40, "a poll of 20 ms makes 100 in about 2 s"


def test_a_stop_order_ends_it_in_mid_request(ring: Ring):
    ring.sender.send(user_msg(1, [1] * 60, max_tokens=4, ignore_eos=True))
    assert isinstance(ring.launcher.take_one(ring.receiver), OpenStream)
    ring.launcher.send("scheduler", Stop())
    assert ring.launcher.wait_exit("scheduler") == 0


def test_a_model_that_cannot_be_loaded_is_a_boot_error():
    config = Config(cache=CacheConfig(num_pages=15, block_size=4), facts=FACTS)
    with FakeLauncher(config) as launcher:
        start(launcher)
        failed = launcher.wait_for("scheduler", BootFailed)
        assert "no room for a simulated model" in failed.message
        assert launcher.wait_exit("scheduler") == 1


def test_a_failed_integrity_check_is_logged_with_the_gauges(caplog: pytest.LogCaptureFixture):
    bench = Bench()
    check(bench.scheduler)
    assert not caplog.records
    bench.cache.num_held += 1
    check(bench.scheduler)
    record = caplog.records[0]
    assert record.levelno == logging.ERROR
    assert "pages_held" in record.getMessage()
    assert record.exc_info is not None


def test_a_detokenizer_that_does_not_read_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def find_no_room(sender: Sender[ToDetokenizer], message: ToDetokenizer) -> None:
        raise ChannelFullError("full")

    monkeypatch.setattr(Sender, "send", find_no_room)
    sender: Sender[ToDetokenizer] = Sender(tmp_path / "x.sock")
    bench = Bench()
    bench.scheduler.receive(user_msg(1, [1, 2]))
    ReplySender(bench.scheduler, sender).send()
    sender.close()
    assert "dropped OpenStream and the messages after it: full" in caplog.text
    assert bench.scheduler.schedule() is not None
