"""The control plane: what a process and its launcher tell each other, apart from the requests."""

from typing import Literal

import msgspec

from messages.control.admin import Answer, Ask, Instruction, InstructionDone, Scaling
from messages.control.histograms import Counted, HistogramCounts

ProcessState = Literal["starting", "ready", "busy", "hung", "dead", "restarting", "standby"]
"""`restarting`: it is dead and will be started again; `dead`: it will not; `standby`: it waits to take a place."""

FRONTEND = "frontend"
RING = ("tokenizer", "scheduler", "detokenizer")
"""The kinds of process that a request passes through."""

WAITING = "waiting"
"""How the phase of a starting process begins while the machine that it needs is not there."""

SUCCESSOR = ".next"
"""`tokenizer.next` is the process that will take the place of `tokenizer`."""

PREDECESSOR = ".old"
"""`frontend.old` is the one whose place has been taken, and which finishes what it has begun."""


def place_of(name: str) -> str:
    """`tokenizer-2.next` → `tokenizer-2`: whose place a process has, will have or has had."""
    return name.partition(".")[0]


def kind_of(name: str) -> str:
    """`tokenizer-2` → `tokenizer`, `rank1-2` → `rank`: what a process does, and what the operator's rules call it."""
    return place_of(name).partition("-")[0].rstrip("0123456789")


def worker_name(kind: str, number: int) -> str:
    """Returns the name of the worker with this number, from 1 on: `tokenizer`, `tokenizer-2`, `tokenizer-3` …"""
    return kind if number == 1 else f"{kind}-{number}"


def worker_number(name: str) -> int:
    """`tokenizer` → 1, `tokenizer-2` → 2."""
    return int(place_of(name).partition("-")[2] or 1)


def age_s(since_ns: int, now_ns: int) -> float | None:
    """Returns how long ago a stamp is, as it is shown; `None` for 0, which says that it has not happened."""
    return round(max(0, now_ns - since_ns) / 1e9, 3) if since_ns else None


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: the first message; the launcher answers `Welcome` or `Refused`."""

    name: str
    pid: int
    schema_version: int


class PhaseReport(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: what it is doing while it starts; `fraction` of the phase in [0, 1] where it is known."""

    text: str
    fraction: float | None = None


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: it serves from now on; `degraded`: what is missing or slower, and why.

    `placement`, of a scheduler: the device, dtype and kv_cache_dtype that `auto` resolved to.
    """

    degraded: str = ""
    placement: dict[str, str] = {}


class BootFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: it cannot start; `message` is for the operator."""

    message: str


class QuietRequest(msgspec.Struct, frozen=True, array_like=True):
    """An open request that has had no token for some time.

    `since_ns`: when its latest token came or, before the first, it itself. Of one that decodes: `interval_ns` is the
    median time between its tokens (0: unknown), `num_steps` how many steps of the scheduler the frontend has heard of
    since its latest token.
    """

    uid: int
    request_id: str
    stage: str
    since_ns: int
    interval_ns: int = 0
    num_steps: int = 0
    engine: int = 1
    """The number of its scheduler."""


class FrontendReport(msgspec.Struct, frozen=True, array_like=True):
    """What frontends must know of each other, and the launcher of their requests.

    `quiet`: some of the open requests that have had no token for long, those that decode first.
    `schedulers_seen` are the incarnations of the schedulers up to which this one has counted deaths. Suspects come with
    a death only, so `num_suspects` is all that can be for as long as those are the schedulers of now.
    """

    num_on_hold: int = 0
    num_suspects: int = 0
    schedulers_seen: dict[str, int] = {}
    quiet: tuple[QuietRequest, ...] = ()


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher, about once a second, from its main loop: it is alive.

    `busy_since_ns`: when the running step began, 0 when idle. `gauges`: sizes of the process's maps and queues by name.
    `histograms`: distributions since it started, by the names in `messages/control/histograms.py`.
    `sent`: by receiver, which sender this process is there and the number of its latest frame. `received`: by sender,
    the numbers of the first and the latest frame that have come from it (`messages/frames.py`). `frontend`: of a
    frontend alone.
    """

    sent_ns: int
    busy_since_ns: int = 0
    gauges: dict[str, float] = {}
    histograms: dict[str, HistogramCounts] = {}
    sent: dict[str, tuple[int, int]] = {}
    received: dict[int, tuple[int, int]] = {}
    frontend: FrontendReport | None = None


class Drained(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → launcher: the last request has ended, or the drain's deadline has passed (`num_unfinished` left).

    scheduler → launcher: the last row has ended; `num_unfinished` requests wait.
    """

    num_unfinished: int = 0


class StandingBy(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: it could take its predecessor's place now."""


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → process: it belongs to the run, under this incarnation (1 at first, +1 at each restart).

    `uid_block`: of a frontend, the block of uids that it gives (`messages/ring/uids.py`), else 0.
    """

    incarnation: int
    uid_block: int = 0


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → process: it does not belong to the run; it must exit."""

    reason: str


class Drain(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → frontend: accept nothing new, let what runs finish for at most `timeout_s`, then answer `Drained`.

    launcher → scheduler: let what waits wait and what has a row finish; answer `Drained` when no row is left.
    """

    timeout_s: float


class TakeOver(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → process that stands by: the place is free; serve from now on, as this incarnation."""

    incarnation: int


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → frontend: another one accepts connections now; finish those that are open within `timeout_s`.

    It answers `Drained` when the last one has ended, or at the deadline.
    """

    timeout_s: float


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → process: leave the main loop and exit with code 0."""


class ProcessStatus(msgspec.Struct, frozen=True):
    """One process as the launcher sees it; stamps are `time.monotonic_ns()`, 0 where it has not happened."""

    name: str
    state: ProcessState
    pid: int = 0
    incarnation: int = 0
    phase: str = ""
    fraction: float | None = None
    beat_ns: int = 0
    busy_since_ns: int = 0
    gauges: dict[str, float] = {}
    histograms: dict[str, HistogramCounts] = {}
    num_restarts: int = 0
    """How often the launcher has replaced it in this run."""
    is_awaited: bool = False
    """It is being replaced on command: its successor is sure to come soon, so requests are taken and wait."""
    is_killed: bool = False
    """It hung, so the launcher has killed it, and starts it again."""
    is_by_command: bool = False
    """This incarnation has taken the place of a healthy one."""
    is_leaving: bool = False
    """It finishes what it has and gets nothing new."""
    sent: dict[str, tuple[int, int]] = {}
    received: dict[int, tuple[int, int]] = {}
    frontend: FrontendReport | None = None
    """As in its latest `Beat`."""
    uid_block: int = 0
    """Of a frontend, the block of uids that it gives; 0 before its start."""
    counted_before: Counted = Counted()
    """What those who had the place before it have counted."""
    degraded: str = ""
    """As in its `Ready`."""
    placement: dict[str, str] = {}
    """As in its latest `Ready`, or in that of its predecessor."""

    @property
    def is_serving(self) -> bool:
        """It takes work, as far as its beats tell."""
        return self.state in ("ready", "busy")

    @property
    def is_up(self) -> bool:
        """It has come to serve and has not ended; it may hang."""
        return self.is_serving or self.state == "hung"

    @property
    def counted(self) -> Counted:
        """What has been counted in this place since the run began."""
        return self.counted_before.plus(self.gauges, self.histograms)


StallKind = Literal["process", "edge", "queue", "stream"]
"""A process gives no sign; it does not receive what it is sent; it runs no step, or lets nothing out of the queue,
although it could; a stream gets no tokens."""


class Stall(msgspec.Struct, frozen=True, array_like=True):
    """Process `process` keeps requests waiting, for no reason that is known, since `since_ns`; `text` says how."""

    kind: StallKind
    process: str
    since_ns: int
    text: str


class ProcessTable(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → frontend: every process, at each change of a state and with each beat.

    `stalls` are those that go on, `num_stalls` counts those of the run by kind.
    """

    processes: tuple[ProcessStatus, ...]
    stalls: tuple[Stall, ...] = ()
    num_stalls: dict[str, int] = {}
    scaling: Scaling | None = None


ToLauncher = Hello | PhaseReport | StandingBy | Ready | BootFailed | Beat | Drained | InstructionDone | Ask
ToProcess = Welcome | Refused | TakeOver | Drain | Leave | Stop | ProcessTable | Instruction | Answer
