"""The control plane: messages between a process and its launcher."""

from typing import Literal

import msgspec

from messages.control.admin import Answer, Ask, Instruction, InstructionDone, Scaling
from messages.control.histograms import CounterTotals, HistogramCounts

ProcessState = Literal["starting", "ready", "busy", "hung", "dead", "restarting", "standby"]
"""`restarting`: dead, and will be restarted; `dead`: will not be restarted; `standby`: ready to replace another one."""

FRONTEND = "frontend"
RING = ("tokenizer", "scheduler", "detokenizer")
"""The kinds of processes that a request passes through."""

ENCODER = "encoder"
"""The kind of processes that encode images for schedulers; text does not wait for them."""

WAITING = "waiting"
"""How the phase of a starting process begins while the machine that it needs is not there."""

SUCCESSOR = ".next"
"""`tokenizer.next` is the process that will replace `tokenizer`."""

PREDECESSOR = ".old"
"""`frontend.old` has been replaced and is finishing its requests."""


def place_of(name: str) -> str:
    """`tokenizer-2.next` → `tokenizer-2`: the place that a process has, will have or had."""
    return name.partition(".")[0]


def kind_of(name: str) -> str:
    """`tokenizer-2` → `tokenizer`, `rank1-2` → `rank`: the kind of a process."""
    return place_of(name).partition("-")[0].rstrip("0123456789")


def worker_name(kind: str, number: int) -> str:
    """Returns the name of a worker by its number, counted from 1: `tokenizer`, `tokenizer-2`, `tokenizer-3` …"""
    return kind if number == 1 else f"{kind}-{number}"


def worker_number(name: str) -> int:
    """`tokenizer` → 1, `tokenizer-2` → 2."""
    return int(place_of(name).partition("-")[2] or 1)


def age_s(since_ns: int, now_ns: int) -> float | None:
    """Returns the age of a timestamp, rounded to milliseconds; `None` for 0 (not yet happened)."""
    return round(max(0, now_ns - since_ns) / 1e9, 3) if since_ns else None


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: the first message; the launcher answers `Welcome` or `Refusal`."""

    name: str
    pid: int
    schema_version: int


class PhaseReport(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: the current phase of its start. `fraction` in [0, 1] is its progress, if known."""

    text: str
    fraction: float | None = None


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: it serves from now on. `degraded` names what is missing or slower, and why.

    `placement`, set by a scheduler or an encoder: the device, dtype and kv_cache_dtype to which `auto` was resolved.
    """

    degraded: str = ""
    placement: dict[str, str] = {}


class BootFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: it cannot start. `message` is for the operator; `fitting_len` is that of `BootError`."""

    message: str
    fitting_len: int = 0


class QuietRequest(msgspec.Struct, frozen=True, array_like=True):
    """An open request that has received no token for some time.

    `since_ns`: when its latest token arrived or, before the first one, the request itself. For a decoding request,
    `interval_ns` is the median time between its tokens (0: unknown), and `num_steps` is the number of scheduler steps
    reported to the frontend since its latest token.
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
    """The state of a frontend's requests, for the launcher and the other frontends.

    `quiet`: some of the open requests that have received no token for a long time, decoding ones first.
    `schedulers_seen`: by name, the scheduler incarnation up to which this frontend has counted deaths. Only a death
    creates suspects, so `num_suspects` is complete as long as these are the current schedulers.
    """

    num_on_hold: int = 0
    num_suspects: int = 0
    schedulers_seen: dict[str, int] = {}
    quiet: tuple[QuietRequest, ...] = ()


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher, about once a second, from its main loop: it is alive.

    `busy_since_ns`: when the running step began, 0 if idle. `gauges`: sizes of the process's maps and queues by name.
    `histograms`: distributions since the start, by the names in `messages/control/histograms.py`. `sent`: by receiver,
    this process's sender id and the number of its latest frame. `received`: by sender id, the numbers of its first and
    latest frame (`messages/frames.py`). `frontend`: set by frontends only.
    """

    sent_ns: int
    busy_since_ns: int = 0
    gauges: dict[str, float] = {}
    histograms: dict[str, HistogramCounts] = {}
    sent: dict[str, tuple[int, int]] = {}
    received: dict[int, tuple[int, int]] = {}
    frontend: FrontendReport | None = None


class Drained(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → launcher: its last request has ended, or the deadline has passed with `num_unfinished` requests left.

    scheduler → launcher: its last row has ended; `num_unfinished` requests are still waiting.
    """

    num_unfinished: int = 0


class StandingBy(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: it is ready to replace its predecessor."""


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → process: it is part of the run, as this incarnation (1 at first, +1 at each restart).

    `uid_block`: the block of uids that a frontend assigns (`messages/ring/uids.py`), 0 for other processes.
    """

    incarnation: int
    uid_block: int = 0


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → process: it is not part of the run and must exit."""

    reason: str


class Drain(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → frontend: accept no new requests, let the open ones finish for `timeout_s`, then answer `Drained`.

    launcher → scheduler: start no waiting requests, let the rows finish, and answer `Drained` when none is left.
    """

    timeout_s: float


class TakeOver(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → standby process: the place is free; serve from now on, as this incarnation."""

    incarnation: int


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → frontend: its successor accepts connections now; finish the open ones within `timeout_s`.

    Answered with `Drained` when the last connection has ended, or at the deadline.
    """

    timeout_s: float


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → process: leave the main loop and exit with code 0."""


class ProcessStatus(msgspec.Struct, frozen=True):
    """The launcher's view of one process. Timestamps are `time.monotonic_ns()`, 0 if it has not happened."""

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
    """How often the launcher has replaced it during this run."""
    is_awaited: bool = False
    """It is being replaced on command. A successor will serve soon, so requests are admitted and wait."""
    is_killed: bool = False
    """It hung, so the launcher killed it and is restarting it."""
    is_by_command: bool = False
    """This incarnation replaced a healthy one."""
    is_leaving: bool = False
    """It is finishing its work and gets no more."""
    sent: dict[str, tuple[int, int]] = {}
    received: dict[int, tuple[int, int]] = {}
    frontend: FrontendReport | None = None
    """As in its latest `Beat`."""
    uid_block: int = 0
    """The block of uids that a frontend assigns; 0 before it starts."""
    counted_before: CounterTotals = CounterTotals()
    """Totals of its predecessors."""
    degraded: str = ""
    """As in its `Ready`."""
    placement: dict[str, str] = {}
    """As in its latest `Ready`, or its predecessor's."""

    @property
    def is_serving(self) -> bool:
        """True if it accepts work, according to its beats."""
        return self.state in ("ready", "busy")

    @property
    def is_up(self) -> bool:
        """True if it has been ready and has not ended; it may hang."""
        return self.is_serving or self.state == "hung"

    @property
    def counted(self) -> CounterTotals:
        """Totals of this place since the run began."""
        return self.counted_before.plus(self.gauges, self.histograms)


StallKind = Literal["process", "edge", "queue", "stream"]
"""`process`: it does not respond; `edge`: it does not receive its messages; `queue`: it runs no step, or starts no
waiting request, although it could; `stream`: a request gets no tokens."""


class Stall(msgspec.Struct, frozen=True, array_like=True):
    """Process `process` has kept requests waiting since `since_ns` for no known reason; `text` describes it."""

    kind: StallKind
    process: str
    since_ns: int
    text: str


class ProcessTable(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → frontend: the state of every process, sent at each change and each beat.

    `stalls` are the current ones; `num_stalls` counts those of the whole run, by kind.
    """

    processes: tuple[ProcessStatus, ...]
    stalls: tuple[Stall, ...] = ()
    num_stalls: dict[str, int] = {}
    scaling: Scaling | None = None


ToLauncher = Hello | PhaseReport | StandingBy | Ready | BootFailed | Beat | Drained | InstructionDone | Ask
ToProcess = Welcome | Refusal | TakeOver | Drain | Leave | Stop | ProcessTable | Instruction | Answer
