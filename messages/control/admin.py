"""Commands to a running server and their results.

A command comes from the operator's command line (the socket `operator` in the run directory) or from an HTTP endpoint
(over the frontend's control channel), and the launcher carries it out. What a single process must do itself is an
`Instruction`, which the launcher passes on and whose results it collects.
"""

from typing import Literal

import msgspec

LogLevel = Literal["debug", "info", "warning", "error"]
Reason = Literal["unknown", "busy", "impossible", "failed", "timeout"]
"""`unknown`: there is no such process; `busy`: try again later; `impossible`: it cannot be asked of this server."""

DEFAULT_INSTRUCTION_TIMEOUT_S = 10.0


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One process as the operator sees it; `state` is a `control.ProcessState`.

    `cpu_percent` of one core, over the fraction of a second that the command took. Unknown values are `None`.
    """

    name: str
    state: str
    pid: int
    incarnation: int
    num_restarts: int
    beat_age_s: float | None
    busy_s: float | None
    cpu_percent: float | None
    rss_bytes: int | None
    phase: str
    fraction: float | None
    gauges: dict[str, float]


ScalingCause = Literal["waiting", "idle", "range"]
"""Why the number of engines changes: prompts wait, too little is done, or it is below or above what is wanted."""


class Scaling(msgspec.Struct, frozen=True):
    """With `--max-engines`: how many engines there are to be, between which numbers, why, and the changes so far."""

    target: int
    min_engines: int
    max_engines: int
    text: str
    num_decisions: dict[ScalingCause, int] = {}


class ListProcesses(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Answered with `ProcessList`."""


class ReadLog(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The last `num_lines` that `process` has written or, with `after` >= 0, those from that line number on.

    Answered with `LogLines`, at once or, where there is no such line yet, after at most `wait_s`.
    """

    process: str
    num_lines: int = 50
    after: int = -1
    wait_s: float = 0.0


class DrainServer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Take nothing new, let what runs finish for at most `timeout_s` (`None`: --drain-timeout-s), then end the server.

    Answered with `Done` when the last request has ended, right before the processes stop.
    """

    timeout_s: float | None = None


class RestartProcess(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Replace `process` by a new one, so that clients see no error. Answered with `Done` when the old one is gone.

    Rows of a scheduler and connections of a frontend may finish within `timeout_s`. Without it rows go on at once, at
    another scheduler or in the new one, and connections get --drain-timeout-s. With `is_for_all` all processes of this
    one's kind are replaced, one after the other; where one cannot be, the command has failed and ends.
    """

    process: str
    timeout_s: float | None = None
    is_for_all: bool = False


class ScaleProcess(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Let there be `num` processes of the kind `process`. Answered with `Done` when all serve and none is too many."""

    process: str
    num: int


class TakeSnapshot(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Write a snapshot into the new directory `directory` (empty: one of its own in --snapshot-dir).

    Answered with `Done`, whose text is the directory.
    """

    directory: str = ""


class SetLogLevel(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To a process: show log lines from `level` on. Answered with `Acknowledged`."""

    level: LogLevel


class StartProfile(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To a process: take notes of all you do from now on. Answered with `Acknowledged`."""


class StopProfile(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To a process: take no more notes. Answered with `Acknowledged`, whose text is the file that they soon are in."""


class WriteState(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To a frontend: write what you would answer about yourself, for a snapshot, into files in `directory`.

    Answered with `Acknowledged`.
    """

    directory: str


class ReadStacks(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To an engine on another machine: `Acknowledged` has the stacks of its threads, which its joiner asks for."""


class ExtraInstruction(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To a process: carry out `command`, a message of an extra in MessagePack. Answered with `Acknowledged`."""

    extra: str
    command: bytes


ProcessCommand = SetLogLevel | StartProfile | StopProfile | WriteState | ReadStacks | ExtraInstruction
"""What a process can be told to do; `ProcessLink.register` gives each kind its function."""


class Acknowledged(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From a process: it has been done."""

    text: str = ""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """It has not been done; `message` is for the operator."""

    reason: Reason
    message: str


ProcessResult = Acknowledged | Failed


class InstructProcesses(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Have each of `processes` (empty: all that serve) carry out `command`. Answered with `Collected`.

    A process that does not answer within `timeout_s` is in the result as `Failed`.
    """

    processes: tuple[str, ...]
    command: ProcessCommand
    timeout_s: float = DEFAULT_INSTRUCTION_TIMEOUT_S


AdminCommand = ListProcesses | ReadLog | DrainServer | InstructProcesses | RestartProcess | ScaleProcess | TakeSnapshot


class ProcessList(msgspec.Struct, frozen=True, array_like=True, tag=True):
    processes: tuple[ProcessInfo, ...]
    scaling: Scaling | None = None


class LogLines(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`next_number` is the number of the line after the last one; ask for it to go on."""

    lines: tuple[str, ...]
    next_number: int


class Collected(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The result of each process by name."""

    results: dict[str, ProcessResult]


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The command has been carried out; `text` says so."""

    text: str


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """How far a long command has come; its result follows."""

    text: str


Result = ProcessList | LogLines | Collected | Done | Failed | Progress


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """operator or frontend → launcher: a command; `ask_id` is the asker's own and comes back with each `Answer`."""

    ask_id: int
    command: AdminCommand


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → operator or frontend: the result, or one `Progress` of several."""

    ask_id: int
    result: Result


class Instruction(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → process: carry out `command`, and answer with `InstructionDone`."""

    instruction_id: int
    command: ProcessCommand


class InstructionDone(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: the instruction has been carried out, or has failed."""

    instruction_id: int
    result: ProcessResult
