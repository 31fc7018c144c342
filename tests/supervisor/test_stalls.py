"""Stalls, and states that only look like stalls, on a simulated ring with a clock of its own."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from messages.control.processes import Beat, FrontendReport, ProcessStatus, QuietRequest, Stall
from supervisor.process_files import RunState
from supervisor.stalls import StallDetector

STALL_S = 15.0
FRONT, TOKENIZER, SCHEDULER, DETOKENIZER = NAMES = ("frontend", "tokenizer", "scheduler", "detokenizer")
EDGES = ((FRONT, TOKENIZER), (TOKENIZER, SCHEDULER), (SCHEDULER, DETOKENIZER), (DETOKENIZER, FRONT))


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


class PlayedRing:
    """Four processes that beat once a second, and the stalls that the launcher reports.

    At first all make progress: each second each process sends a frame, which is received, and a step runs.
    """

    def __init__(self, num_requests: int = 1):
        self.now_s = 1000.0
        self.run_states: dict[int, RunState] = {}
        self.detector = StallDetector(STALL_S, lambda pid: self.run_states.get(pid, "runs"))
        self.statuses = {
            name: ProcessStatus(name, "ready", pid=pid, incarnation=1, uid_block=int(name == FRONT))
            for pid, name in enumerate(NAMES, 1)
        }
        self.sent = dict.fromkeys(EDGES, 10)
        self.taken = dict.fromkeys(EDGES, 10)
        self.gauges: dict[str, dict[str, float]] = {
            FRONT: {"requests": num_requests},
            SCHEDULER: {"running": num_requests, "steps": 1, "admitted": 1, "pages_all": 9},
        }
        self.quiet: list[QuietRequest] = []
        self.silent: set[str] = set()
        self.deaf: set[str] = set()
        self.runs_steps = True

    def set(self, name: str, **fields: Any) -> None:
        self.statuses[name] = msgspec.structs.replace(self.statuses[name], **fields)

    def play(self, seconds: int) -> list[Stall]:
        """Returns the stalls reported in this time."""
        return [stall for _ in range(seconds) for stall in self._play_second()]

    def _play_second(self) -> list[Stall]:
        self.now_s += 1
        if self.runs_steps and SCHEDULER not in self.silent:
            self.gauges[SCHEDULER]["steps"] += 1
        for edge in EDGES:
            self.sent[edge] += edge[0] not in self.silent
            if not {edge[1]} & (self.silent | self.deaf):
                self.taken[edge] = self.sent[edge]
        for number, name in enumerate(NAMES):
            if name not in self.silent:
                self._beat(name, self.now_s - number / 10)
        return self.detector.look(list(self.statuses.values()), nanoseconds(self.now_s))

    def _beat(self, name: str, at_s: float) -> None:
        sender_ids = {edge: number for number, edge in enumerate(EDGES, 1)}
        beat = Beat(
            nanoseconds(at_s),
            gauges=dict(self.gauges.get(name, {})),
            sent={edge[1]: (sender_ids[edge], self.sent[edge]) for edge in EDGES if edge[0] == name},
            received={sender_ids[edge]: (1, self.taken[edge]) for edge in EDGES if edge[1] == name},
            frontend=FrontendReport(quiet=tuple(self.quiet)) if name == FRONT else None,
        )
        self.set(
            name,
            beat_ns=beat.sent_ns,
            gauges=beat.gauges,
            sent=beat.sent,
            received=beat.received,
            frontend=beat.frontend,
        )

    def stream(self, *, interval_s: float = 0.05, num_steps: int = 0) -> None:
        """A request that decodes has had its latest token now."""
        times = nanoseconds(self.now_s), nanoseconds(interval_s)
        self.quiet = [QuietRequest(7, "mine", "decode", *times, num_steps=num_steps)]


def kinds(stalls: Sequence[Stall]) -> list[tuple[str, str]]:
    return [(stall.kind, stall.process) for stall in stalls]


def test_a_ring_that_moves_on_does_not_stall():
    assert PlayedRing().play(300) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_process_that_gives_no_sign_and_is_in_no_step_is_notified_once(name: str):
    ring = PlayedRing()
    ring.play(2)
    ring.silent = {name}
    stalls = ring.play(200)
    assert kinds(stalls) == [("process", name)]
    assert stalls[0].text.startswith("gives no sign, and it is in no step, for 15.")
    assert ring.detector.open == {name: stalls[0]}


def test_what_has_moved_on_may_stall_again():
    ring = PlayedRing()
    ring.play(2)
    for _ in range(3):
        ring.silent = {TOKENIZER}
        assert kinds(ring.play(40)) == [("process", TOKENIZER)]
        ring.silent = set()
        assert ring.play(20) == []
        assert ring.detector.open == {}


def test_a_long_step_is_no_stall_unless_its_process_was_stopped():
    ring = PlayedRing()
    ring.play(2)
    ring.set(SCHEDULER, state="busy", busy_since_ns=nanoseconds(ring.now_s))
    ring.silent = {SCHEDULER}
    ring.stream()
    assert ring.play(100) == []
    ring.run_states[ring.statuses[SCHEDULER].pid] = "traced"
    assert ring.play(100) == []
    ring.run_states[ring.statuses[SCHEDULER].pid] = "stopped"
    (stall,) = ring.play(100)
    assert (stall.kind, stall.process) == ("process", SCHEDULER)
    assert "it was stopped by a signal" in stall.text
    assert "uid 7 id mine (decode, no token for " in stall.text


def test_the_result_of_a_long_step_is_waited_for():
    """The frontend reports that a stream waits, in the moment between the end of a long step and the token from it."""
    ring = PlayedRing()
    ring.play(2)
    for _ in range(5):
        ring.stream()
        ring.silent = {SCHEDULER}
        ring.set(SCHEDULER, state="busy", busy_since_ns=nanoseconds(ring.now_s))
        assert ring.play(40) == []
        ring.silent = set()
        assert ring.play(1) == []


def test_without_requests_nothing_stalls():
    ring = PlayedRing(num_requests=0)
    ring.play(2)
    ring.silent = {TOKENIZER}
    assert ring.play(100) == []


@pytest.mark.parametrize(("sender", "receiver"), EDGES)
def test_a_process_that_turns_and_takes_nothing_is_notified_once(sender: str, receiver: str):
    ring = PlayedRing()
    ring.play(2)
    ring.deaf = {receiver}
    (stall,) = ring.play(200)
    assert (stall.kind, stall.process) == ("edge", receiver)
    assert stall.text.startswith(f"turns its loop and takes nothing from {sender}: of ")


def test_lost_frames_are_no_stall():
    """Nothing more was sent after them, so that their receiver does not know of them."""
    ring = PlayedRing()
    ring.play(2)
    ring.silent = {TOKENIZER}
    ring.sent[TOKENIZER, SCHEDULER] += 3
    ring.silent = set()
    edge = TOKENIZER, SCHEDULER
    for _ in range(100):
        ring.sent[edge] -= 1  # which the next second adds
        ring.taken[edge] = 12
        taken, ring.deaf = ring.taken[edge], {SCHEDULER}
        assert ring.play(1) == []
        ring.taken = {**ring.sent, edge: taken}


def test_what_a_replaced_receiver_never_got_is_no_stall():
    ring = PlayedRing()
    ring.play(2)
    edge = TOKENIZER, SCHEDULER
    ring.set(SCHEDULER, pid=50, incarnation=2)
    for _ in range(100):
        ring.sent[edge] -= 1
        ring.taken[edge] = 0
        ring.deaf = {SCHEDULER}
        assert ring.play(1) == []
        ring.taken = {**ring.sent, edge: 0}


def test_a_tokenizer_that_turns_and_finishes_no_request_is_notified_once():
    ring = PlayedRing()
    stalls: list[Stall] = []
    for second in range(100):
        ring.gauges[TOKENIZER] = {"num_tokenized": 5, "waiting_s": float(second), "chars_in_hand": 12}
        stalls += ring.play(1)
    assert kinds(stalls) == [("queue", TOKENIZER)]
    assert stalls[0].text.startswith("passes no request on, with 12 characters in hand, for 1")


def test_a_tokenizer_that_finishes_others_meanwhile_is_busy_and_does_not_stall():
    ring = PlayedRing()
    for second in range(100):
        ring.gauges[TOKENIZER] = {"num_tokenized": second // 5, "waiting_s": float(second)}
        assert ring.play(1) == []


def test_a_scheduler_that_runs_no_step_for_its_rows_is_notified_once():
    ring = PlayedRing()
    ring.play(2)
    ring.runs_steps = False
    stalls = ring.play(200)
    assert kinds(stalls) == [("queue", SCHEDULER)]
    assert stalls[0].text.startswith("turns its loop and runs no step, with 1 requests in rows, for 15.")


def test_a_queue_that_no_one_leaves_although_there_is_room_is_notified_once():
    """Others run on; one that waits for rows or pages, or for its grammar, is not reported."""
    ring = PlayedRing()
    ring.gauges[SCHEDULER] |= {"waiting": 2, "has_room": 0, "pages_in_use": 4}
    assert ring.play(200) == []
    ring.gauges[SCHEDULER]["has_room"] = 1
    (stall,) = ring.play(200)
    assert (stall.kind, stall.process) == ("queue", SCHEDULER)
    assert stall.text.startswith("lets none of 2 waiting requests in, with 1 rows taken, 5 pages free, for 15.")


def test_a_queue_from_which_requests_continue_does_not_stall():
    ring = PlayedRing()
    ring.gauges[SCHEDULER] |= {"waiting": 2, "has_room": 1}
    for _ in range(20):
        ring.gauges[SCHEDULER]["admitted"] += 1
        assert ring.play(10) == []


@pytest.mark.parametrize(
    ("num_steps", "runs_steps", "process", "words"),
    [
        (0, False, SCHEDULER, "has run no step for a stream"),
        (4, False, SCHEDULER, "has run 4 steps without a token for a stream (as a rule one comes every 50 ms), for "),
        (90, True, SCHEDULER, "has run 90 steps without a token for a stream (as a rule one comes every 50 ms), for "),
        (0, True, DETOKENIZER, "has sent nothing of the scheduler's latest steps to a stream"),
    ],
)
def test_a_stream_without_a_token_is_notified_once(num_steps: int, runs_steps: bool, process: str, words: str):
    ring = PlayedRing()
    ring.play(2)
    ring.stream(num_steps=num_steps)
    ring.runs_steps = runs_steps
    (stall,) = ring.play(200)
    assert (stall.kind, stall.process) == ("stream", process)
    assert words in stall.text
    assert stall.text.endswith(" s; waiting: uid 7 id mine (decode, no token for 18.0 s)")


def test_a_slow_stream_may_be_slow():
    """Twenty times the median between its tokens."""
    ring = PlayedRing()
    ring.play(2)
    ring.stream(interval_s=3.0, num_steps=1)
    assert ring.play(60) == []
    assert kinds(ring.play(4)) == [("stream", SCHEDULER)]


@pytest.mark.parametrize("stage", ["tokenize", "scheduler_inbox", "queue", "preempted", "prefill"])
def test_a_request_that_does_not_decode_may_wait_long(stage: str):
    ring = PlayedRing()
    ring.play(2)
    ring.quiet = [QuietRequest(7, "mine", stage, nanoseconds(ring.now_s))]
    assert ring.play(300) == []


@pytest.mark.parametrize("state", ["starting", "restarting", "dead"])
def test_while_a_process_is_away_nothing_stalls(state: str):
    ring = PlayedRing()
    ring.play(2)
    ring.set(TOKENIZER, state=state)
    ring.silent = {TOKENIZER}
    ring.runs_steps = False
    ring.stream()
    assert ring.play(200) == []
    ring.set(TOKENIZER, state="ready")
    ring.silent, ring.quiet = set(), []
    assert ring.play(10) == []  # the time before does not count
    ring.runs_steps = True
    assert ring.play(200) == []


def test_a_tokenizer_with_a_long_text_does_not_stall():
    ring = PlayedRing()
    ring.play(2)
    ring.set(TOKENIZER, state="busy", busy_since_ns=nanoseconds(ring.now_s))
    ring.silent = {TOKENIZER}
    ring.quiet = [QuietRequest(7, "mine", "tokenize", nanoseconds(ring.now_s))]
    assert ring.play(200) == []
    ring.silent = set()
    assert ring.play(200) == []


def test_after_the_launcher_was_stopped_itself_everything_begins_anew():
    ring = PlayedRing()
    ring.play(2)
    ring.deaf = {SCHEDULER}
    assert ring.play(14) == []
    ring.detector.forget(nanoseconds(ring.now_s))
    assert ring.play(10) == []
    assert kinds(ring.play(10)) == [("edge", SCHEDULER)]


def test_after_the_machine_was_stopped_no_process_is_silent_until_it_has_had_the_time_to_beat():
    ring = PlayedRing()
    ring.play(2)
    ring.now_s += 100
    ring.detector.forget(nanoseconds(ring.now_s))
    ring.silent = set(NAMES)
    assert ring.play(14) == []
    assert sorted(kinds(ring.play(2))) == sorted(("process", name) for name in NAMES)


def test_of_several_schedulers_the_one_whose_streams_wait_is_notified():
    """The other one runs steps and moves its own streams on."""
    ring = PlayedRing()
    second = "scheduler-2"
    ring.statuses[second] = ProcessStatus(second, "ready", pid=9, incarnation=1)
    ring.play(2)
    ring.quiet = [QuietRequest(7, "mine", "decode", nanoseconds(ring.now_s), nanoseconds(0.05), engine=2)]
    found: list[Stall] = []
    for _ in range(60):
        ring.set(second, beat_ns=nanoseconds(ring.now_s + 0.9), gauges={"running": 1.0, "steps": 5.0})
        found += ring.play(1)
    assert kinds(found) == [("stream", second)]
    assert "has run no step for a stream" in found[0].text
