"""The messages between the head of a server and an engine on another machine (`launch.py join`, decision 0067).

On the head a proxy stands for the engine: to the launcher and the ring it is the scheduler of that name. On the other
machine the joiner starts the scheduler, or the rank of a stage, and is its launcher there.
"""

from typing import TypeVar

import msgspec

from extras.remote.file_messages import FileList, ListFiles, ModelPart, SendPart
from messages.control.admin import Instruction, InstructionDone
from messages.control.processes import Beat, BootFailed, Drain, Drained, PhaseReport, Ready, Stop
from messages.ring.replies import ToDetokenizer
from messages.ring.requests import ToScheduler
from messages.ring.steps import ToRank
from messages.schema import make_version

S = TypeVar("S", bound=msgspec.Struct)

EngineReport = PhaseReport | Ready | BootFailed | Beat | Drained | InstructionDone
"""The reports of a joined engine that the head's launcher receives."""


class Join(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """joiner → proxy, first: it offers machine `host`. Both ends must be of one `schema_version` and `release`."""

    schema_version: int
    release: str
    host: str


class ClockQuestion(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """joiner → proxy: it was `asked_ns` on the joiner's clock (`time.monotonic_ns()`)."""

    asked_ns: int


class EngineSays(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """joiner → proxy: a report of the engine, its stamps on the head's clock."""

    report: EngineReport


class EngineFrame(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Both ways: a frame of requests, with the number that its first sender gave it (`messages/frames.py`)."""

    frame: bytes


class Hop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Both ways, if the engine is a stage of a pipeline: a frame of hidden states, numbered by the stage before."""

    frame: bytes


class EngineOutput(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """joiner → proxy: lines that the engine has written."""

    lines: tuple[str, ...]


class FilePart(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """joiner → proxy: bytes of the file `name`, which has `num_bytes`; -1 while it is not there.

    `clock_ahead_ns`: by how much the head's clock is ahead of the one that times in the file are on.
    """

    name: str
    data: bytes
    num_bytes: int
    clock_ahead_ns: int


class EngineEnded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """joiner → proxy, last: the engine has ended, or never begun; `why` is for the operator."""

    why: str


class Admitted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """proxy → joiner: it shall run the engine `name`, incarnation `incarnation` of it.

    `config` is the run's, as JSON and without keys of clients. `model_files` has a digest of each file of the head's
    model, by name.
    """

    name: str
    incarnation: int
    config: bytes
    model_files: dict[str, str]


class TurnedAway(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """proxy → joiner: it cannot join; where it `may_try_again`, that may change."""

    reason: str
    may_try_again: bool = False


class ClockAnswer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """proxy → joiner: the question has come at `head_ns` on the head's clock."""

    asked_ns: int
    head_ns: int


class Order(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """proxy → joiner: what the launcher wants of the engine."""

    command: Drain | Stop | Instruction


class FileQuestion(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """proxy → joiner: send a part of the file `name` of the engine's profile, from byte `begin` on."""

    name: str
    begin: int


class Probe(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """proxy → joiner: nothing; it finds out whether the connection is there."""


ToProxy = (
    Join | ClockQuestion | EngineSays | EngineFrame | Hop | EngineOutput | EngineEnded | FilePart | ListFiles | SendPart
)
ToJoiner = Admitted | TurnedAway | ClockAnswer | Order | EngineFrame | Hop | Probe | FileQuestion | FileList | ModelPart


JOIN_VERSION = make_version(ToProxy, ToJoiner, ToScheduler, ToDetokenizer, ToRank)
"""The schema version, which must be the same for head and joiner."""


def shift_stamps(message: S, by_ns: int) -> S:
    """Returns `message` with all its stamps (`…_ns`, also of structs in it) on a clock that is ahead by `by_ns`.

    A stamp of 0 stays: it has not been yet.
    """
    changed: dict[str, object] = {}
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if name.endswith("_ns"):
            changed[name] = value and value + by_ns
        elif isinstance(value, msgspec.Struct):
            changed[name] = shift_stamps(value, by_ns)
        elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
            changed[name] = tuple(shift_stamps(one, by_ns) for one in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return msgspec.structs.replace(message, **changed) if changed else message
