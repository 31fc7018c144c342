"""Retries a step that raises in halves, until the failing rows are isolated."""

import logging
import secrets
from collections.abc import Callable

from messages.columns import num_int32, pack_int32, unpack_int32
from messages.errors import ErrorInfo
from messages.ring.axes import slice_columns
from messages.ring.steps import ROW, Batch, ForwardOutput
from scheduler_proc.deciding.sampling.logprob_columns import join_known
from scheduler_proc.deciding.tasks.kinds import KINDS

MAX_RERUNS = 64
"""Runs spent on one failed step: to find one bad row among 256 takes 16; beyond this the fault is not in the rows."""

log = logging.getLogger("sluice.scheduler")

Run = Callable[[Batch], ForwardOutput]


def run_step(run: Run, batch: Batch) -> tuple[ForwardOutput, dict[int, ErrorInfo]]:
    """Runs the step; returns its result and the error of each row that could not be computed, by row index.

    A step that raises is halved by rows until the failing ones are known. That is safe because a step writes only K and
    V of its own tokens and the states after them, the same ones each time. Rows that fail have no entries in the
    result. If the step overwrites a state that it begins from, its own exception is raised: see `Stages.suspect`.
    """
    try:
        return run(batch), {}
    except Exception:
        if not set(unpack_int32(batch.state_sources)).isdisjoint(
            [slot for slot in unpack_int32(batch.state_slots) if slot >= 0]
        ):
            raise
        return _Search(run).run_apart(batch)


class _Search:
    """One failed step: the runs spent on it so far, and the reference under which its errors are logged."""

    def __init__(self, run: Run):
        self._run = run
        self._num_reruns = 0
        self._reference = secrets.token_hex(4)

    def run_apart(self, batch: Batch) -> tuple[ForwardOutput, dict[int, ErrorInfo]]:
        """Called while the exception that `batch` raised is handled; runs its halves."""
        num_rows = batch.num_rows
        if num_rows == 1:
            return self._give_up(batch, num_rows)
        log.warning("step %d failed, running its %d rows apart", batch.step_id, num_rows)
        middle = num_rows // 2
        outputs: list[ForwardOutput] = []
        failures: dict[int, ErrorInfo] = {}
        for start, stop in ((0, middle), (middle, num_rows)):
            output, failed = self._run_part(slice_rows(batch, start, stop))
            outputs.append(output)
            failures.update((start + row, error) for row, error in failed.items())
        return join_outputs(outputs), failures

    def _run_part(self, part: Batch) -> tuple[ForwardOutput, dict[int, ErrorInfo]]:
        if self._num_reruns == MAX_RERUNS:
            return self._give_up(part, part.num_rows)
        self._num_reruns += 1
        try:
            return self._run(part), {}
        except Exception:
            return self.run_apart(part)

    def _give_up(self, batch: Batch, num_rows: int) -> tuple[ForwardOutput, dict[int, ErrorInfo]]:
        log.exception("step %d: %d rows cannot be computed, reference %s", batch.step_id, num_rows, self._reference)
        message = f"the model could not compute this request (reference {self._reference})"
        error = ErrorInfo(status=500, message=message, type="server_error")
        return ForwardOutput(batch.step_id, b""), dict.fromkeys(range(num_rows), error)


def join_outputs(outputs: list[ForwardOutput]) -> ForwardOutput:
    """Joins the results of the parts of a step, in order."""
    return ForwardOutput(
        outputs[0].step_id,
        b"".join(output.next_tokens for output in outputs),
        join_known([output.logprobs for output in outputs]),
        num_tokens=_join_counts(outputs),
        **{kind.field: kind.join([getattr(output, kind.field) for output in outputs]) for kind in KINDS},
    )


def _join_counts(outputs: list[ForwardOutput]) -> bytes:
    if not any(output.num_tokens for output in outputs):
        return b""
    return b"".join(output.num_tokens or pack_int32([1]) * num_int32(output.next_tokens) for output in outputs)


def slice_rows(batch: Batch, start: int, stop: int) -> Batch:
    """Returns the step of rows `start` to `stop` (exclusive, not empty) of `batch` alone; all tokens must be known."""
    assert not batch.future_token_indices, "a step that waits for the tokens of another was to be run apart"
    num_decode_rows = max(0, min(stop, batch.num_decode_rows) - start)
    return slice_columns(batch, ROW, start, stop, num_decode_rows=num_decode_rows)
