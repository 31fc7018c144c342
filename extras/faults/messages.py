"""The messages of `launch.py inject` to processes, inside an `ExtraInstruction`."""

from typing import Literal

import msgspec

from messages.control.admin import ExtraInstruction

EXTRA = "faults"


class SignalSelf(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To a process: die (SIGKILL) or stop (SIGSTOP) at once. Answered with `Acknowledged`, just before."""

    kind: Literal["kill", "stop"]


class EdgeFault(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To a process: do this to the next `num_frames` frames for `receiver`, or to each one with `probability`.

    `corrupt`: the frame does not decode. `delay`: by `delay_s`, in order. Answered with `Acknowledged`.
    """

    receiver: str
    kind: Literal["drop", "duplicate", "corrupt", "delay"]
    num_frames: int = 1
    probability: float = 0.0
    delay_s: float = 0.0


class Poison(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To the scheduler: a step with this request, or with these int32 token ids side by side, must not succeed.

    `kill`: the process dies in it, and so does its successor; `fail`: the step raises. Answered with `Acknowledged`.
    """

    kind: Literal["kill", "fail"]
    uid: int = 0
    token_ids: bytes = b""


class Starve(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To the scheduler: leave request `uid` out of every step once it decodes, or (0) let nothing out of the queue.

    Answered with `Acknowledged`.
    """

    uid: int = 0


class DamagePages(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To the scheduler: overwrite K of `num_pages` full pages, and die at once. Its successor must not use them.

    Answered with `Acknowledged`, just before.
    """

    num_pages: int = 1


class StopReading(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To a process: receive nothing that other processes send, but keep running. Answered with `Acknowledged`."""


class ClearFaults(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To a process: forget all faults that were asked for. Answered with `Acknowledged`."""


Fault = SignalSelf | EdgeFault | Poison | Starve | DamagePages | StopReading | ClearFaults


def wrap(fault: Fault) -> ExtraInstruction:
    """Returns the instruction that carries `fault` to a process."""
    return ExtraInstruction(EXTRA, msgspec.msgpack.encode(fault))
