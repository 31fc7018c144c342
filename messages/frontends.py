"""Sends replies to the frontend that owns the request. Each frontend has its own socket."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from messages.channels import Sender
from messages.columns import pack_counts, pack_int32, pack_int64, runs_of, unpack_int32, unpack_int64
from messages.control.processes import FRONTEND, ProcessStatus, kind_of
from messages.ring.peers import ToFrontend
from messages.ring.replies import StepReplies
from messages.ring.requests import DropBefore, FramesLost
from messages.ring.timeline import ScheduleReport, Tokenized
from messages.ring.uids import GoneRequests, block_of, first_uid_of, frontend_socket


def socket_of(status: ProcessStatus) -> str:
    """Returns the name of the socket that a process binds; each frontend has its own."""
    return frontend_socket(status.uid_block) if kind_of(status.name) == FRONTEND else status.name


@dataclass(eq=False)
class FrontendSenders:
    """Senders to the frontends, each opened with the first request of that frontend.

    `find_blocks` returns the uid blocks of all frontends, including those whose requests this process has not seen.
    """

    _open_sender: Callable[[str], Sender[Any]]
    _close_sender: Callable[[Sender[Any]], None]
    _find_blocks: Callable[[], Iterable[int]] = tuple
    _senders: dict[int, Sender[ToFrontend]] = field(default_factory=dict[int, Sender[ToFrontend]])
    """By uid block."""
    _gone: GoneRequests = field(default_factory=GoneRequests)

    def send(self, message: ToFrontend) -> None:
        """Sends each frontend its own replies; lost frames and schedule reports go to all frontends.

        Messages to a frontend that is gone or has stopped reading are dropped.
        """
        match message:
            case FramesLost():
                # In a new process, the lost frames may include the first one of a frontend.
                for block in {*self._senders, *self._find_blocks()}:
                    self.send_to(block, message)
            case ScheduleReport():
                for sender in self._senders.values():
                    sender.send_or_drop(message)
            case StepReplies():
                self._send_step(message)
            case Tokenized(rows):
                for block in {block_of(row.uid) for row in rows}:
                    self.send_to(block, Tokenized(tuple([row for row in rows if block_of(row.uid) == block])))
            case _:
                self.send_to(block_of(message.uid), message)

    def send_to(self, block: int, message: ToFrontend) -> None:
        """Sends `message` to the frontend with this block. Drops it if that is gone or has stopped reading."""
        sender = self._find_sender(block)
        if sender is not None:
            sender.send_or_drop(message)

    def forget(self, drop: DropBefore) -> None:
        """Closes the senders to frontends that are gone."""
        self._gone.record(drop)
        for block in [known for known in self._senders if self._gone.has(first_uid_of(known))]:
            self._close_sender(self._senders.pop(block))

    def expect(self, uid: int) -> None:
        """Opens the sender to the frontend of `uid`, so that it gets schedule reports before its first reply."""
        self._find_sender(block_of(uid))

    @property
    def num_open(self) -> int:
        return len(self._senders)

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()

    def _send_step(self, step: StepReplies) -> None:
        uids = unpack_int64(step.uids)
        blocks = {block_of(uid) for uid in (min(uids), max(uids))} if uids else set[int]()
        blocks |= {block_of(final.uid) for final in step.finals}
        if len(blocks) == 1:
            self.send_to(blocks.pop(), step)
            return
        for block in {block_of(uid) for uid in uids} | blocks:
            self.send_to(block, _part_of(step, lambda uid, block=block: block_of(uid) == block))

    def _find_sender(self, block: int) -> Sender[ToFrontend] | None:
        """Returns the sender to the frontend with this block, `None` if it is gone."""
        sender = self._senders.get(block)
        if sender is None and not self._gone.has(first_uid_of(block)):
            sender = self._senders[block] = self._open_sender(frontend_socket(block))
        return sender


def _part_of(step: StepReplies, is_requested: Callable[[int], bool]) -> StepReplies:
    uids, attempts = unpack_int64(step.uids), unpack_int32(step.attempts)
    runs = list(runs_of(step.token_ids, step.num_tokens))
    rows = [row for row, uid in enumerate(uids) if is_requested(uid)]
    is_kept = [is_requested(uid) for uid, run in zip(uids, runs, strict=True) for _ in run]
    place_of = list(accumulate(is_kept, initial=0))
    logprobs = [
        pair for pair in zip(unpack_int32(step.logprob_entries), step.logprobs, strict=True) if is_kept[pair[0]]
    ]
    return StepReplies(
        step_id=step.step_id,
        uids=pack_int64(uids[row] for row in rows),
        attempts=pack_int32(attempts[row] for row in rows),
        token_ids=pack_int32(token_id for row in rows for token_id in runs[row]),
        texts=tuple(step.texts[row] for row in rows),
        finals=tuple(final for final in step.finals if is_requested(final.uid)),
        logprob_entries=pack_int32(place_of[entry] for entry, _ in logprobs),
        logprobs=tuple(token for _, token in logprobs),
        prefilled=tuple(row for row in step.prefilled if is_requested(row.uid)),
        num_tokens=pack_counts([len(runs[row]) for row in rows]),
        committed_ns=step.committed_ns,
        engine=step.engine,
    )
