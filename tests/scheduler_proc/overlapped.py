"""A runner whose steps take time while the scheduler continues, and a bench that plans one step ahead on it.

Steps are computed in the order of their launches, by any function of a `Batch`, and no earlier than their results are
asked for: whatever the scheduler does meanwhile must not matter. Time is counted, not spent.
"""

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from messages.columns import pack_int32, unpack_int32, unpack_int64
from messages.ring.requests import ToScheduler, UserMsg
from messages.ring.steps import Batch, ForwardOutput, LogitsProcessing
from scheduler_proc.step_times import StepTimes
from scheduler_proc.stepper import Stepper
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench
from tests.scheduler_proc.simulated_runner import rows_of_samples

GHOST = VOCAB_SIZE + 1_000
"""The token of a row whose request has ended; no client may ever get it."""

STEP_S, TOKEN_S = 1.0, 0.05
"""What a step takes, and each of its tokens."""

HOST_S = 0.9
"""What a turn of the scheduler takes."""


class LaunchedStep(NamedTuple):
    runner: "OverlappedRunner"
    batch: Batch
    end_s: float
    attempts: list[int | None]

    @property
    def has_ended(self) -> bool:
        return self.runner.has_ended(self)

    def result(self) -> ForwardOutput:
        return self.runner.result_of(self)


class OverlappedRunner:
    """Computes steps with another runner's `run`; fills in the tokens that a step takes from the one before it.

    `fails` is asked at each launch and result with another step in flight, and may make it raise. `attempt_of`
    returns the running attempt of a request, or `None`: with it the results of other rows are GHOSTs.
    """

    can_overlap = True
    can_plan_ahead = False
    num_stages = 1
    degraded = ""
    placement: dict[str, str] = {}  # noqa: RUF012 (never written)
    memory_gauges = dict[str, float]
    draft_runner = None
    page_memory = None
    page_store = None
    span_rows = None
    windows = None
    states: tuple[int, int] | None = None
    max_waiting = 2

    def __init__(self, runner: Any, attempt_of: Callable[[int], int | None] = lambda uid: 0) -> None:
        self.num_pages: int = runner.num_pages
        self.max_num_batched_tokens: int = runner.max_num_batched_tokens
        self.now_s = 0.0
        self.num_launched = self.num_ahead = self.num_ghosts = 0
        self.num_known = 0
        """Rows of steps planned ahead that the step before did not have."""
        self.fails: Callable[[str], bool] = lambda where: False
        self._run: Callable[[Batch], ForwardOutput] = runner.run
        self._spoil: Callable[[Batch], None] = getattr(runner, "spoil", lambda batch: None)
        self._attempt_of = attempt_of
        self._end_s = 0.0
        self._waiting: deque[LaunchedStep] = deque()
        self._place = getattr(runner, "place_adapter", None)
        self._placed: dict[int, list[tuple[int, int]]] = {}
        """The adapters that were placed before each step."""
        self._placing: list[tuple[int, int]] = []
        self._last_step_id = 0
        self._has_failed = False
        """The step before has failed, so that this one has nothing to begin from."""
        self._last_tokens: array[int] = array("i")

    def read_adapter(self, path: str) -> Any:
        raise AssertionError("adapters are not read here")

    def place_adapter(self, slot: int, adapter: int) -> None:
        self._placing.append((slot, adapter))

    def launch(self, batch: Batch) -> LaunchedStep:
        assert len(self._waiting) < self.max_waiting, "too many steps are in flight"
        if batch.future_token_indices:
            assert len(batch.future_token_indices) == 4 * batch.num_decode_rows
            assert batch.step_id == self._last_step_id + 1, "the tokens are those of another step"
            assert len(self._waiting) == 1, "a step names tokens that are known"
            self.num_known += unpack_int32(batch.future_token_indices).count(-1)
        if self._waiting and self.fails("launch"):
            raise ArithmeticError("a launch that fails")
        self._has_failed = self._has_failed and bool(self._waiting)
        self.num_launched += 1
        self.num_ahead += bool(self._waiting)
        self._last_step_id = batch.step_id
        self._end_s = self.find_end_s(batch)
        attempts = [self._attempt_of(uid) for uid in unpack_int64(batch.uids)]
        self._placed[batch.step_id], self._placing = self._placing, []
        launched = LaunchedStep(self, batch, self._end_s, attempts)
        self._waiting.append(launched)
        return launched

    def has_ended(self, launched: LaunchedStep) -> bool:
        return False

    def find_end_s(self, batch: Batch) -> float:
        """Returns when a step ends that is launched now."""
        return max(self.now_s, self._end_s) + STEP_S + TOKEN_S * batch.num_tokens

    def result_of(self, launched: LaunchedStep) -> ForwardOutput:
        assert self._waiting.popleft() is launched, "results are asked for in another order"
        self.now_s = max(self.now_s, launched.end_s)
        for placement in self._placed.pop(launched.batch.step_id, ()):
            assert self._place is not None
            self._place(*placement)
        if self._has_failed or (self._waiting and self.fails("result")):
            self._has_failed = True
            self._last_tokens = array("i")
            self._spoil(launched.batch)
            raise ArithmeticError("a step that fails, or is behind one")
        self._has_failed = bool(self._waiting)
        batch = launched.batch
        if batch.future_token_indices:
            token_ids, sources = unpack_int32(batch.token_ids), unpack_int32(batch.future_token_indices)
            for row, source in enumerate(sources):
                if source >= 0:
                    assert not token_ids[row], "a token that is not known is told"
                    token_ids[row] = max(0, self._last_tokens[source])
            batch = msgspec.structs.replace(
                batch,
                token_ids=token_ids.tobytes(),
                future_token_indices=b"",
                logits_processing=filled(batch.logits_processing, sources, self._last_tokens),
            )
        output = self._run(batch)
        self._has_failed = False
        self._last_tokens = unpack_int32(output.next_tokens)
        return self._haunted(launched, output)

    def _haunted(self, launched: LaunchedStep, output: ForwardOutput) -> ForwardOutput:
        """Returns the result with nothing of use for the rows whose requests do not run any more."""
        uids = unpack_int64(launched.batch.uids)
        is_ghost = [
            attempt is None or attempt != self._attempt_of(uid)
            for uid, attempt in zip(uids, launched.attempts, strict=True)
        ]
        if not any(is_ghost):
            return output
        self.num_ghosts += sum(is_ghost)
        rows, tokens = rows_of_samples(launched.batch), unpack_int32(output.next_tokens)
        reported = [GHOST if is_ghost[row] else token for row, token in zip(rows, tokens, strict=True)]
        return msgspec.structs.replace(output, next_tokens=pack_int32(reported))


def filled(
    processing: LogitsProcessing | None, sources: Sequence[int], last_tokens: Sequence[int]
) -> LogitsProcessing | None:
    """Returns the changes with each history's last token, where the step before has sampled it."""
    if processing is None:
        return None
    ids, ends = unpack_int32(processing.history_ids), accumulate(unpack_int32(processing.num_history))
    for row, end in zip(unpack_int32(processing.penalty_rows), ends, strict=True):
        if row < len(sources) and sources[row] >= 0:
            assert not ids[end - 1], "a token that is not known is told"
            ids[end - 1] = max(0, last_tokens[sources[row]])
    return msgspec.structs.replace(processing, history_ids=ids.tobytes())


class OverlappedBench(Bench):
    """A `Bench` whose scheduler plans one step ahead, by the code that does so in the process."""

    host_s = HOST_S

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.device = self.make_device()
        self.times = StepTimes()
        self.stepper = self.make_stepper()
        self._attempts: dict[int, int] = {}
        self._planned: dict[int, int] = {}

    def make_device(self) -> OverlappedRunner:
        return OverlappedRunner(self.runner, self._attempt_of)

    def make_stepper(self) -> Stepper:
        return Stepper(self.scheduler, self.device, self.times, self.clock, self.clock)

    def clock(self) -> float:
        """The runner's time: costs, by which drafts are chosen, are a function of the tokens of steps."""
        return self.device.now_s

    def send(self, *messages: ToScheduler) -> None:
        """Sends them; the next turn checks the accounts."""
        for message in messages:
            if isinstance(message, UserMsg):
                self._attempts[message.uid] = max(message.attempt, self._attempts.get(message.uid, 0))
            self.scheduler.receive(message)
        self.inbox.take(self.scheduler.pop_replies())

    def step(self) -> dict[int, int]:
        """Takes one turn; returns the rows of the newest step, {} if nothing is left to do."""
        batch = self.plan()
        while batch is None and not self.stepper.has_step and self.gauge("waiting"):
            batch = self.plan()
        self.inbox.take(self.scheduler.pop_replies())
        if batch is None and not self.stepper.has_step:
            return {}
        self.device.now_s += self.host_s
        if batch is not None:
            assert len(batch.token_ids) // 4 <= self.max_num_batched_tokens, "the step is over its budget"
            self._planned = dict(zip(unpack_int64(batch.uids), unpack_int32(batch.query_lens), strict=True))
        self.stepper.step(batch, self.device.now_s)
        self.scheduler.check()
        self.inbox.take(self.scheduler.pop_replies())
        return self._planned

    def check_idle(self) -> None:
        super().check_idle()
        assert not self.stepper.has_step, "a step was left uncommitted"

    def _attempt_of(self, uid: int) -> int | None:
        attempt = self._attempts.get(uid)
        return None if (uid, attempt) in self.inbox.finished else attempt
