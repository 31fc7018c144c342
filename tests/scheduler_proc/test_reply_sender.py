"""When replies are sent: the real scheduler, a channel that keeps its messages, and a fake clock."""

import time

import pytest

from messages.channels import Sender
from messages.ring.replies import DetokenizeMsg, OpenStream, ToDetokenizer
from messages.ring.requests import AbortMsg
from scheduler_proc.reply_sender import HOLD_NS, ReplySender
from tests.scheduler_proc.clients import Bench, user_msg


class Channel(Sender[ToDetokenizer]):
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[ToDetokenizer] = []

    def send_or_drop(self, message: ToDetokenizer) -> None:
        self.sent.append(message)


class Told:
    """A scheduler whose replies are sent behind each step. `late_ns`: how far the sender's clock is ahead of the
    scheduler's; far behind it, no time is over."""

    def __init__(self, engine: int = 1):
        self.bench = Bench()
        self.channel = Channel()
        self.late_ns = -(10**12)
        self.sender = ReplySender(self.bench.scheduler, self.channel, engine, self._clock_ns)

    def _clock_ns(self) -> int:
        return time.monotonic_ns() + self.late_ns

    def step(self) -> int:
        """Runs a step; returns how many messages were sent behind it."""
        batch = self.bench.scheduler.schedule()
        assert batch is not None
        self.bench.scheduler.commit(self.bench.runner.run(batch))
        return self.send()

    def send(self) -> int:
        self.channel.sent.clear()
        self.sender.send()
        return len(self.channel.sent)

    def ask(self, uid: int, *, is_streamed: bool) -> None:
        message = user_msg(uid, [1, 2, 3], max_tokens=9, ignore_eos=True, is_streamed=is_streamed)
        self.bench.scheduler.receive(message)
        self.send()


def test_tokens_that_no_one_waits_for_are_notified_with_the_end():
    reported = Told()
    reported.ask(1, is_streamed=False)
    assert [type(message) for message in reported.channel.sent] == [OpenStream]
    reported.step()
    assert any(isinstance(message, DetokenizeMsg) and message.prefilled for message in reported.channel.sent)
    assert [reported.step() for _ in range(8)] == [0] * 7 + [8]
    last = reported.channel.sent[-1]
    assert isinstance(last, DetokenizeMsg)
    assert last.finished[0].usage.completion_tokens == 9
    assert [message.step_id for message in reported.channel.sent if isinstance(message, DetokenizeMsg)] == [
        *range(2, 10)
    ]


@pytest.mark.parametrize("stop", [(), ("x",)], ids=["streamed", "stop string"])
def test_one_whose_tokens_are_waited_for_has_those_of_all_reported_at_once(stop: tuple[str, ...]):
    reported = Told()
    reported.ask(1, is_streamed=False)
    reported.step()
    assert reported.step() == 0
    reported.bench.scheduler.receive(user_msg(2, [4, 5, 6], max_tokens=4, stop=stop, is_streamed=not stop))
    assert reported.send() == 2  # what waited, and the opening
    assert all(reported.step() >= 1 for _ in range(4))
    assert reported.step() == 0  # it has ended


def test_tokens_wait_only_so_long():
    reported = Told()
    reported.ask(1, is_streamed=False)
    reported.step()
    assert reported.step() == 0
    reported.late_ns = HOLD_NS
    assert reported.send() == 1
    assert reported.step() == 1


def test_an_abort_and_a_loop_that_waits_have_all_reported():
    reported = Told(engine=2)
    reported.ask(1, is_streamed=False)
    reported.step()
    assert reported.step() == 0
    reported.sender.flush()
    assert [message.engine for message in reported.channel.sent if isinstance(message, DetokenizeMsg)] == [2]
    assert reported.step() == 0
    reported.bench.scheduler.receive(AbortMsg(1, 0))
    assert reported.send() == 2
    assert reported.send() == 0
