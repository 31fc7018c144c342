"""Which requests without recent tokens a frontend reports to the launcher."""

from typing import Any

from frontend.requests.generation import Generation
from frontend.requests.quiet import MAX_QUIET, find_quiet
from frontend.requests.step_log import StepLog
from frontend.requests.timeline import MAX_MARKS
from messages.control.processes import QuietRequest
from messages.ring.requests import SamplingParams, Stamps, TokenizeMsg

SECOND = 1_000_000_000
NOW_NS = 100 * SECOND


def opened(uid: int, received_s: int, **marks_s: int) -> Generation:
    """A request that arrived at `received_s`; `marks_s` are the times at which its later stages began."""
    message = TokenizeMsg(uid, 0, "hi", b"", SamplingParams(8), Stamps(received_ns=received_s * SECOND))
    generation = Generation(message, f"r{uid}")
    for stage, begin_s in marks_s.items():
        mark: Any = stage
        generation.timeline.mark(begin_s * SECOND, mark)
    return generation


def steps_every(interval_ns: int) -> dict[int, StepLog]:
    steps = StepLog()
    for end_ns in range(0, NOW_NS, interval_ns):
        steps.add(end_ns)
    return {1: steps}


def test_a_stream_is_notified_of_with_its_own_pace_and_the_steps_that_it_was_not_in():
    generation = opened(7, 10, decode=20)
    generation.last_token_ns = 90 * SECOND
    steps = steps_every(SECOND // 4)
    assert find_quiet([generation], steps, NOW_NS, 5.0) == (
        QuietRequest(7, "r7", "decode", 90 * SECOND, SECOND // 4, 39),
    )
    assert find_quiet([generation], steps, NOW_NS, 11.0) == ()


def test_one_that_has_no_token_yet_is_notified_of_since_it_came():
    steps = {1: StepLog()}
    assert find_quiet([opened(7, 10, queue=99)], steps, NOW_NS, 5.0) == (QuietRequest(7, "r7", "queue", 10 * SECOND),)
    assert find_quiet([opened(7, 96, queue=99)], steps, NOW_NS, 5.0) == ()


def test_one_that_gave_its_row_up_or_has_too_many_stages_does_not_decode():
    preempted = opened(1, 10, decode=20, preempted=30)
    full = opened(2, 10)
    for _ in range(MAX_MARKS):
        full.timeline.mark(20 * SECOND, "decode")
    found = find_quiet([preempted, full], steps_every(SECOND), NOW_NS, 5.0)
    assert [(one.uid, one.num_steps) for one in found] == [(1, 0), (2, 0)]


def test_those_that_decode_go_first_and_there_are_few():
    waiting = [opened(uid, 10, queue=20) for uid in range(20)]
    decoding = opened(50, 10, decode=20)
    found = find_quiet([*waiting, decoding], {1: StepLog()}, NOW_NS, 5.0)
    assert [one.uid for one in found] == [50, *range(MAX_QUIET - 1)]
