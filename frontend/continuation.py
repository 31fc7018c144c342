"""How open requests outlive a process of the ring: once it is replaced, they are sent again from where they stopped."""

import logging
import secrets
from collections.abc import Iterable

from frontend.errors import internal_error
from frontend.generation import Generation
from frontend.processes import RING, ProcessView
from frontend.quarantine import NUM_DEATHS_REFUSED, Quarantine
from frontend.registry import Registry
from frontend.ring import Ring
from messages.errors import ChannelFullError
from messages.requests import AbortMsg, DropBefore, TokenizeMsg, ToTokenizer

log = logging.getLogger("sluice.frontend")


class Continuations:
    """Watches incarnations, and resubmits as soon as the whole ring serves again.

    Until then what is left of the old attempts may still arrive and counts; afterwards the registry drops it.
    """

    def __init__(self, registry: Registry, ring: Ring, processes: ProcessView, max_num_seqs: int):
        self._registry = registry
        self._ring = ring
        self._processes = processes
        self._quarantine = Quarantine(max_num_seqs)
        self._known: dict[str, int] = {}
        """The incarnation of each process that the open requests were sent through."""

    def follow(self) -> None:
        """Call it after each process table."""
        if not self._processes.is_ready:
            return
        known, self._known = self._known, self._processes.incarnations(RING)
        if known == self._known:
            return
        self._disown_older()
        replaced = [name for name in RING if known and known[name] != self._known[name]]
        if not replaced:
            return
        if replaced == ["tokenizer"]:
            self._repeat_lost()
        else:
            self._resubmit_all(has_scheduler_died="scheduler" in replaced)
        log.info("%s replaced: %d open requests go on", " and ".join(replaced), len(self._registry))

    def release_suspects(self) -> None:
        """Call it after replies: the next request of the quarantine may run once the one before it is cleared."""
        if self._quarantine:
            self._release_next()

    def gauges(self) -> dict[str, float]:
        return {"held_requests": len(self._quarantine)}

    def _disown_older(self) -> None:
        """Ends, in every process, what a predecessor of this frontend has left open; it may have to be said again."""
        if self._registry.has_predecessor:
            self._send(DropBefore(self._registry.first_uid))

    def _repeat_lost(self) -> None:
        """Repeats what a dead tokenizer may have had in hand: requests without a token since, and aborts."""
        for generation in self._registry.all_open():
            if self._quarantine.is_held(generation):
                continue
            if not generation.has_progressed:
                self._resubmit(generation)
            elif generation.is_unwanted:
                self._send(AbortMsg(generation.uid, generation.attempt))

    def _resubmit_all(self, *, has_scheduler_died: bool) -> None:
        """A dead scheduler or detokenizer has had something of every request."""
        if has_scheduler_died:
            self._refuse(self._quarantine.note_death(self._registry.all_open()))
        waiting = [entry for entry in self._registry.all_open() if not self._quarantine.is_held(entry)]
        self._release_next()
        for generation in waiting:
            self._resubmit(generation)

    def _release_next(self) -> None:
        suspect = self._quarantine.next_suspect()
        if suspect is not None:
            log.warning("uid %d may have killed the scheduler twice: no other suspect runs beside it", suspect.uid)
            self._resubmit(suspect)

    def _resubmit(self, generation: Generation) -> None:
        if not generation.has_listener:
            self._send(generation.next_attempt(ends_at_once=True))
            return
        self._send(generation.next_attempt())
        if generation.is_unwanted:
            self._send(AbortMsg(generation.uid, generation.attempt))

    def _refuse(self, culprits: Iterable[Generation]) -> None:
        for generation in culprits:
            reference = secrets.token_hex(6)
            log.error(
                "uid %d id=%s was alone among suspects and the scheduler died %d times, reference %s",
                generation.uid,
                generation.request_id,
                NUM_DEATHS_REFUSED,
                reference,
            )
            self._send(generation.next_attempt(ends_at_once=True))
            self._registry.fail(generation, internal_error(reference))

    def _send(self, message: ToTokenizer) -> None:
        try:
            self._ring.send(message)
        except ChannelFullError as error:
            # A tokenizer that reads nothing for so long is hung: its successor gets everything again.
            what = message.uid if isinstance(message, TokenizeMsg | AbortMsg) else type(message).__name__
            log.error("%s was not sent: %s", what, error)
