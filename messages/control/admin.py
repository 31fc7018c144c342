"""Commands to a running server and their results.

A command comes from the operator's command line (the socket `operator` in the run directory) or from an HTTP endpoint
(over the frontend's control channel). The launcher executes it. If a process must do something itself, the launcher
sends it an `Instruction` and collects the results.
"""

from typing import Literal

import msgspec

LogLevel = Literal["debug", "info", "warning", "error"]
Reason = Literal["unknown", "busy", "impossible", "failed", "timeout"]
"""`unknown`: there is no such process; `busy`: try again later; `impossible`: this server cannot do it."""

DEFAULT_INSTRUCTION_TIMEOUT_S = 10.0


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's view of one process; `state` is a `ProcessState`.

    `cpu_percent` is that of one core, measured over the fraction of a second that the command takes. Unknown values are
    `None`.
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
    placement: dict[str, str] = {}


ScalingCause = Literal["waiting", "idle", "range"]
"""Why the number of engines changes: prompts are waiting, engines are idle, or the number is outside the range."""


class Scaling(msgspec.Struct, frozen=True):
    """With `--max-engines`: the target number of engines, its range, the reason, and the changes so far by cause."""

    target: int
    min_engines: int
    max_engines: int
    text: str
    num_decisions: dict[ScalingCause, int] = {}


class ListProcesses(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Answered with `ProcessList`."""


class ReadLog(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Read the last `num_lines` log lines of `process` or, if `after` >= 0, the lines from that number on.

    Answered with `LogLines`, at once or, if there is no such line yet, after at most `wait_s`.
    """

    process: str
    num_lines: int = 50
    after: int = -1
    wait_s: float = 0.0


class DrainServer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Accept no new requests, let the open ones finish for `timeout_s` (`None`: --drain-timeout-s), then stop.

    Answered with `Done` when the last request has ended, just before the processes stop.
    """

    timeout_s: float | None = None


class RestartProcess(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Replace `process` without errors for clients. Answered with `Done` when the old process is gone.

    Rows of a scheduler and connections of a frontend may finish within `timeout_s`. By default, rows continue at once
    in another scheduler or in the new one, and connections get --drain-timeout-s. `is_for_all` replaces all processes
    of the same kind, one after another, and stops with an error at the first failure.
    """

    process: str
    timeout_s: float | None = None
    is_for_all: bool = False


class ScaleProcess(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Change the number of processes of the kind `process` to `num`. Answered with `Done` when it has been reached."""

    process: str
    num: int


class TakeSnapshot(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Write a snapshot into the new directory `directory` (empty: a new one in --snapshot-dir).

    Answered with `Done`; its text is the directory.
    """

    directory: str = ""


class SetLogLevel(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To a process: set the log level. Answered with `Acknowledged`."""

    level: LogLevel


class StartProfile(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To a process: start a profile. Answered with `Acknowledged`."""


class StopProfile(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To a process: end the profile. Answered with `Acknowledged`; its text is the file, which will be written soon."""


class WriteState(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To a frontend: write its own state, for a snapshot, into files in `directory`.

    Answered with `Acknowledged`.
    """

    directory: str


class ReadStacks(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To an engine on another machine: return the stacks of its threads, collected by its joiner, in `Acknowledged`."""


class ExtraInstruction(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To a process: carry out `command`, a message of an extra in MessagePack. Answered with `Acknowledged`."""

    extra: str
    command: bytes


ProcessCommand = SetLogLevel | StartProfile | StopProfile | WriteState | ReadStacks | ExtraInstruction
"""Commands that processes execute; `ProcessLink.register` sets the function for each kind."""


class Acknowledged(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From a process: the command was executed."""

    text: str = ""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The command failed; `message` is for the operator."""

    reason: Reason
    message: str


ProcessResult = Acknowledged | Failed


class InstructProcesses(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Make each of `processes` (empty: all that serve) execute `command`. Answered with `ProcessResults`.

    The result of a process that does not answer within `timeout_s` is `Failed`.
    """

    processes: tuple[str, ...]
    command: ProcessCommand
    timeout_s: float = DEFAULT_INSTRUCTION_TIMEOUT_S


AdminCommand = ListProcesses | ReadLog | DrainServer | InstructProcesses | RestartProcess | ScaleProcess | TakeSnapshot


class ProcessList(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`memory_bytes`: that of all processes together, with weights and KV cache; what they share counts once."""

    processes: tuple[ProcessInfo, ...]
    scaling: Scaling | None = None
    memory_bytes: int = 0


class LogLines(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`next_number` is the number of the line after the last one, to continue from."""

    lines: tuple[str, ...]
    next_number: int


class ProcessResults(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The result of each process by name."""

    results: dict[str, ProcessResult]


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The command was executed; `text` describes the outcome."""

    text: str


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Progress of a long command; its result follows."""

    text: str


Result = ProcessList | LogLines | ProcessResults | Done | Failed | Progress


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """operator or frontend → launcher: a command. `ask_id` is chosen by the sender and returned in each `Answer`."""

    ask_id: int
    command: AdminCommand


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → operator or frontend: the result, or a `Progress` before it."""

    ask_id: int
    result: Result


class Instruction(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """launcher → process: execute `command` and answer with `InstructionDone`."""

    instruction_id: int
    command: ProcessCommand


class InstructionDone(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """process → launcher: the result of an instruction."""

    instruction_id: int
    result: ProcessResult
