"""The events of the live stream: the server as it is at one moment, and what has changed since another."""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import msgspec

from extras.live.traffic import UNKNOWN_COST, Cost
from frontend.api.operate.request_view import RequestFacts
from frontend.requests.recent_steps import StepSpan
from messages.control.processes import ProcessState, ProcessStatus
from runtime.stage_report import stage_lines

V = TypeVar("V")


class LiveProcess(msgspec.Struct, frozen=True):
    """One process; `gauges` are those of its last beat, at `beat_ns`. `busy_since_ns` is 0 while no step runs."""

    state: ProcessState
    pid: int
    incarnation: int
    num_restarts: int
    beat_ns: int
    busy_since_ns: int
    phase: str
    fraction: float | None
    degraded: str
    gauges: dict[str, float]
    cpu_percent: float | None
    rss_bytes: int | None
    placement: dict[str, str]


class LiveRequest(RequestFacts, frozen=True, kw_only=True):
    """A request that is open or has ended of late (`end_ns` is not 0)."""

    begin_ns: int
    stage_begin_ns: int
    end_ns: int


class LiveState(NamedTuple):
    """The server at one moment. Edges have their messages a second; steps go by keys that mean nothing."""

    processes: Mapping[str, LiveProcess] = {}
    edges: Mapping[str, float] = {}
    requests: Mapping[str, LiveRequest] = {}
    steps: Mapping[str, StepSpan] = {}
    num_open: int = 0
    frontends_missing: int = 0


class LiveEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The changes since the previous event; the first event has everything. Null: the entry is gone.

    All times are nanoseconds of one clock (CLOCK_MONOTONIC of the server's machine), which shows `now_ns`. `requests`
    are by uid: the oldest of `num_open` and the latest that have ended, of each frontend. The end of old steps is not
    reported. `frontends_missing` is the number of frontends that have not answered. `stages` are lines of text that
    compare the stages of each engine.
    """

    now_ns: int
    num_open: int
    frontends_missing: int = 0
    processes: dict[str, LiveProcess | None] = {}
    edges: dict[str, float | None] = {}
    requests: dict[str, LiveRequest | None] = {}
    steps: dict[str, StepSpan] = {}
    stages: list[str] = []


def make_process(status: ProcessStatus, cost: Cost | None) -> LiveProcess:
    fields = msgspec.structs.asdict(status) | (cost or UNKNOWN_COST)._asdict()
    if status.state != "starting":
        fields |= {"phase": "", "fraction": None}
    return msgspec.convert(fields, LiveProcess)


def make_event(before: LiveState, state: LiveState, now_ns: int) -> LiveEvent:
    """Returns the event that leads from `before` to `state`."""
    return LiveEvent(
        now_ns=now_ns,
        num_open=state.num_open,
        frontends_missing=state.frontends_missing,
        processes=_changes(before.processes, state.processes),
        edges=_changes(before.edges, state.edges),
        requests=_changes(before.requests, state.requests),
        steps=_new(before.steps, state.steps),
        stages=list(stage_lines(state.processes)),
    )


def _new(before: Mapping[str, V], now: Mapping[str, V]) -> dict[str, V]:
    return {key: value for key, value in now.items() if before.get(key) != value}


def _changes(before: Mapping[str, V], now: Mapping[str, V]) -> dict[str, V | None]:
    return {**_new(before, now), **{key: None for key in before if key not in now}}
