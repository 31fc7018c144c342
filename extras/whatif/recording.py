"""A recording (`--record DIR`) as arrivals, measured steps, and the times at which requests got their tokens."""

import math
import statistics
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from extras.whatif.calibration import Calibration
from extras.whatif.recorded_steps import StepReader
from extras.whatif.settings import MAX_PAGES
from extras.whatif.traces import Arrival
from messages.columns import INT32, runs_of, unpack_int32, unpack_int64
from messages.control.processes import FRONTEND, kind_of
from messages.engine_names import SCHEDULER
from messages.errors import UsageError
from messages.frame_files import Record, find_readers, read_records, reporting_damage
from messages.ring.replies import DetokenizeMsg, StepReplies
from messages.ring.requests import UserMsg
from messages.ring.timeline import ScheduleReport
from supervisor.manifest import read_manifest


class Recording(NamedTuple):
    """The requests that were served, and how. `num_left_out` requests have no token, or began before the first frame.

    `token_times_s` are those of each arrival: when the frontend had its tokens, in seconds since it had the request.
    """

    calibration: Calibration
    arrivals: list[Arrival]
    token_times_s: list[NDArray[np.float64]]
    num_left_out: int


class _Request:
    """A request as the scheduler saw it. It arrives when it is tokenized: the scheduler looks between two steps."""

    def __init__(self, message: UserMsg):
        self.message = message
        self.at_ns = message.stamps.tokenized_ns
        self.received_ns = message.stamps.received_ns
        self.first_token_ns = 0
        self.seen_ns: list[int] = []
        self.output_ids: array[int] = array(INT32)

    def arrival(self, begin_ns: int) -> Arrival:
        params = self.message.sampling_params
        return Arrival(
            unpack_int32(self.message.input_ids).tolist(),
            len(self.output_ids),
            (self.at_ns - begin_ns) / 1e9,
            self.output_ids.tobytes(),
            params.cache_salt,
            params.priority,
            self.message.engine,
            self.message.client,
            self.message.share,
        )


def read_recording(folder: Path, num_skipped: int = 0) -> Recording:
    """Skips this number of requests, and everything before the next one.

    Raises `SluiceError` if the directory holds no recording of a scheduler.
    """
    with reporting_damage(folder):
        return _read(folder, num_skipped)


def _read(folder: Path, num_skipped: int) -> Recording:
    config = read_manifest(folder).config
    records = read_records(find_readers(folder))
    if num_skipped:
        came_ns = [record.monotonic_ns for record, one in _messages(records, SCHEDULER) if isinstance(one, UserMsg)]
        begin_ns = ([*came_ns[num_skipped:], math.inf])[0]
        records = [record for record in records if record.monotonic_ns >= begin_ns]
    readers: dict[int, StepReader] = {}
    requests: dict[int, _Request] = {}
    reports: list[ScheduleReport] = []
    for record, message in _messages(records, SCHEDULER):
        readers.setdefault(record.pid, StepReader()).take(message)
        _record_request(requests, message)
        if isinstance(message, ScheduleReport):
            reports.append(message)
    served = sorted((one for one in requests.values() if one.output_ids), key=lambda one: one.at_ns)
    if not served:
        raise UsageError(f"{folder} holds no request that got a token from its beginning on")
    arrivals = [request.arrival(served[0].at_ns) for request in served]
    delays_ns = _record_replies(requests, _messages(records, FRONTEND))
    num_pages = config.cache.num_pages or max(_num_pages(report, config.cache.block_size) for report in reports)
    if num_pages > MAX_PAGES:
        raise UsageError(f"{folder} is damaged: it claims a cache of {num_pages} pages")
    calibration = Calibration.of(
        config,
        can_overlap=False,
        num_pages=num_pages,
        max_num_batched_tokens=reports[0].facts.max_num_batched_tokens,
        pipeline_s=_pipeline_s(served),
        jitter_s=_jitter_s(delays_ns),
        steps=[step for reader in readers.values() for step in reader.steps],
    )
    token_times_s = [(np.array(one.seen_ns) - one.received_ns) / 1e9 for one in served]
    return Recording(calibration, arrivals, token_times_s, len(requests) - len(served))


def _messages(records: Iterable[Record], kind: str) -> Iterator[tuple[Record, Any]]:
    """Yields the messages that processes of a kind sent or received, except truncated and deliberately damaged ones."""
    for record in records:
        if kind_of(record.process) == kind:
            try:
                yield record, record.decode()
            except msgspec.DecodeError:
                continue


def _record_request(requests: dict[int, _Request], message: object) -> None:
    match message:
        case UserMsg() if message.uid not in requests and not message.output_ids:
            requests[message.uid] = _Request(message)
        case DetokenizeMsg():
            for uid, token_ids in zip(
                unpack_int64(message.uids), runs_of(message.token_ids, message.num_tokens), strict=True
            ):
                if uid in requests:
                    requests[uid].output_ids.extend(token_ids)
                    requests[uid].first_token_ns = requests[uid].first_token_ns or message.committed_ns
        case _:
            pass


def _num_pages(report: ScheduleReport, page_size: int) -> int:
    """Returns a lower bound of the number of pages; it is exact if only one prompt runs."""
    of_prompt = -(-report.chunks[0].end // page_size) if len(report.chunks) == 1 else 0
    return report.facts.num_free_pages + report.facts.num_evictable_pages + of_prompt


def _record_replies(requests: dict[int, _Request], replies: Iterable[tuple[Record, Any]]) -> list[int]:
    """Records when the frontend had the tokens of each request. Returns the ns from the commit of each step.

    A step without a waiting request may be reported later: it counts from its commit.
    """
    delays_ns: list[int] = []
    for record, message in replies:
        if isinstance(message, StepReplies):
            uids = (*unpack_int64(message.uids), *(final.uid for final in message.finals if final.token_ids))
            known = [requests[uid] for uid in uids if uid in requests]
            reports_tokens = any(one.message.sampling_params.needs_token_delivery for one in known)
            is_at_once = message.prefilled or message.finals or reports_tokens or not message.committed_ns
            if message.committed_ns and is_at_once:
                delays_ns.append(record.monotonic_ns - message.committed_ns)
            for one in known:
                one.seen_ns.append(record.monotonic_ns if is_at_once else message.committed_ns)
    return delays_ns


def _pipeline_s(served: Sequence[_Request]) -> float:
    """Returns the median time of a request from the frontend to the scheduler, plus that of its first token back."""
    times_ns = [one.at_ns - one.received_ns + one.seen_ns[0] - one.first_token_ns for one in served if one.seen_ns]
    return statistics.median(times_ns or [0]) / 1e9


def _jitter_s(delays_ns: Sequence[int]) -> tuple[float, ...]:
    """Returns the deviation of each delay from their median."""
    delays_s = np.array(delays_ns or [0]) / 1e9
    return tuple((delays_s - np.median(delays_s)).tolist())
