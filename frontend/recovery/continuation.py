"""How open requests survive a dead process or a lost frame: they are resent and continue where they stopped."""

import logging
import secrets
import time
from collections.abc import Collection, Iterable, Sequence

import msgspec

from frontend.errors import internal_error
from frontend.links.processes import ProcessView
from frontend.links.ring import Ring
from frontend.recovery.quarantine import NUM_DEATHS_REFUSED, Quarantine, may_release_suspect
from frontend.recovery.sequence_tracker import SequenceTracker
from frontend.requests.generation import Generation
from frontend.requests.registry import Registry
from frontend.routing.router import Router
from messages.control.processes import FrontendReport, QuietRequest, kind_of, worker_number
from messages.engine_names import SCHEDULER, engine_name
from messages.errors import ChannelFullError
from messages.ring.requests import AbortMsg, AbortReason, DropBefore, FramesLost, TokenizeMsg

log = logging.getLogger("sluice.frontend")


class Continuations:
    """Watches incarnations, and resubmits requests as soon as the ring is closed again, or at once if a frame is lost.

    If one of several schedulers is down, the ring is closed without it: its requests continue at the others at once.
    Until then, replies of the old attempts still count; afterwards the registry drops them.
    """

    def __init__(
        self, registry: Registry, ring: Ring, router: Router, processes: ProcessView, uid_block: int, max_num_seqs: int
    ):
        self._registry = registry
        self._ring = ring
        self._router = router
        self._processes = processes
        self._quarantine = Quarantine(max_num_seqs)
        self.num_resubmitted = 0
        """Number of attempts begun because a process died."""
        self._sequences = SequenceTracker()
        self._has_unanswered_loss = False
        self._doubts = set[str]()
        """Replaced processes that may not have received their first frames, which belonged to new attempts."""
        self._known: dict[str, int] = {}
        """The processes that served at the latest check, with their incarnations."""
        self._uid_block = uid_block
        self._reported_gone: DropBefore | None = None
        """The latest message to the ring about ended frontends."""

    def follow(self) -> None:
        """Call this after each process table."""
        self._ring.follow(self._processes.workers("tokenizer"), self._processes.serving())
        self._router.follow()
        self._look_for_losses()
        if not self._processes.is_ready:
            self._known = {**self._processes.serving_of(SCHEDULER), **self._known}  # a new one may get requests now
            return
        known, self._known = self._known, self._processes.serving()
        gone = self._processes.find_gone_frontends(self._uid_block)
        if known != self._known or gone != self._reported_gone:
            self._disown(gone)
        replaced = [name for name in known if known[name] != self._known.get(name)]
        if replaced:
            self._replace(replaced)
        elif known == self._known:
            if self._has_unanswered_loss:
                self._answer_loss()
            elif self._doubts:
                log.info("a new process may have missed its first frames: requests without a token are resent")
                self._repeat_lost(self._doubts)
            self._doubts.clear()
            self.release_suspects()
        self._clear_leaving()

    def _replace(self, replaced: Sequence[str]) -> None:
        """Continues the requests of processes that are gone, whether or not they have been replaced."""
        kinds = {kind_of(name) for name in replaced}
        engines = {worker_number(name) for name in replaced if kind_of(name) == SCHEDULER}
        dead = [engine for engine in engines if self._processes.has_died(engine_name(engine))]
        if kinds == {"tokenizer"} and not self._has_unanswered_loss:
            self._repeat_lost(replaced)
        elif kinds == {SCHEDULER} and not self._has_unanswered_loss:
            self._resubmit_all(engines, dead)
        else:
            self._resubmit_all(dead=dead)
        self._has_unanswered_loss = False
        log.info("%s replaced: %d requests continue", " and ".join(replaced), len(self._registry.all_sent()))

    def _clear_leaving(self) -> None:
        """Moves the requests of leaving schedulers to others, if there are any."""
        leaving = self._processes.leaving_engines()
        moving = [entry for entry in self._registry.all_sent() if entry.engine in leaving] if leaving else []
        for generation in moving:
            if not self._quarantine.is_held(generation):
                self._resubmit(generation)
        if moving:
            log.info("%d requests continue at another scheduler", len(moving))

    def _look_for_losses(self) -> None:
        losses = self._sequences.follow(self._processes.statuses())
        for lost in losses.certain:
            log.error("%s: sender %x, frames %d to %d are lost", *msgspec.structs.astuple(lost))
        self._has_unanswered_loss = self._has_unanswered_loss or bool(losses.certain)
        self._doubts |= {lost.receiver for lost in losses.doubtful}

    def record_lost(self, lost: FramesLost) -> None:
        """Handles a gap that a receiver noticed: no later token of a current attempt may count, so all are restarted.

        This does not wait for a process that is down; when it is back, they are resent once more.
        """
        if not self._sequences.is_notified(lost):
            self._answer_loss()

    def release_suspects(self) -> None:
        """Call this after replies: the next suspect may run once the previous one is cleared.

        With several frontends, the turn may pass from one to another with each process table.
        """
        if self._quarantine:
            self._release_next()

    def gauges(self) -> dict[str, float]:
        return {"held_requests": len(self._quarantine), "suspects": self._quarantine.num_suspects}

    def report(self, num_on_hold: int, quiet: tuple[QuietRequest, ...] = ()) -> FrontendReport:
        """Returns the report of this frontend for the other frontends and the launcher."""
        schedulers = {name: incarnation for name, incarnation in self._known.items() if kind_of(name) == SCHEDULER}
        return FrontendReport(num_on_hold, self._quarantine.num_suspects, schedulers, quiet)

    def _answer_loss(self) -> None:
        self._has_unanswered_loss = False
        self._disown(self._processes.find_gone_frontends(self._uid_block))
        self._resubmit_all()
        log.warning("frames were lost: %d requests continue in a new attempt", len(self._registry.all_sent()))

    def _disown(self, gone: DropBefore | None) -> None:
        """Ends, in every process, the open requests of frontends that are gone.

        New processes may need the message again.
        """
        self._reported_gone = gone
        if gone is not None:
            engines = tuple(map(worker_number, self._processes.serving_of(SCHEDULER)))
            self._send(msgspec.structs.replace(gone, engines=engines or (1,)))

    def _repeat_lost(self, processes: Collection[str]) -> None:
        """Repeats messages that these processes may have missed: requests without a token since then, and aborts."""
        is_for_all = any(kind_of(name) not in ("tokenizer", SCHEDULER) for name in processes)
        for generation in self._registry.all_sent():
            path = {self._ring.worker_of(generation.uid), engine_name(generation.engine)}
            if self._quarantine.is_held(generation) or not (is_for_all or path.intersection(processes)):
                continue
            if not generation.has_progressed:
                self._resubmit(generation)
            elif generation.abort_reason is not None:
                self._abort(generation, generation.abort_reason)

    def _resubmit_all(self, engines: Collection[int] | None = None, dead: Iterable[int] = ()) -> None:
        """Resubmits every request or, with `engines`, those at these schedulers. The schedulers in `dead` have died."""
        for engine in dead:
            sent = self._registry.all_sent()
            had = [entry for entry in sent if entry.engine == engine]
            self._refuse(self._quarantine.record_death(had, [entry for entry in sent if entry.engine != engine]))
        waiting: list[Generation] = []
        for entry in self._registry.all_sent():
            if engines is not None and entry.engine not in engines:
                continue
            entry.timeline.interrupt(entry.last_token_ns)
            entry.timeline.is_quarantined = self._quarantine.is_held(entry)
            if not entry.timeline.is_quarantined:
                waiting.append(entry)
        self._release_next()
        for generation in waiting:
            self._resubmit(generation)

    def _release_next(self) -> None:
        if not may_release_suspect(self._processes, self._uid_block):
            return
        suspect = self._quarantine.next_suspect()
        if suspect is not None:
            log.warning(
                "uid %d may have killed the scheduler twice: it runs while no other suspect does",
                suspect.uid,
                extra=suspect.log_extra,
            )
            self._resubmit(suspect)

    def _resubmit(self, generation: Generation) -> None:
        self.num_resubmitted += 1
        generation.timeline.interrupt(generation.last_token_ns)
        generation.timeline.send(time.monotonic_ns())
        self._place(generation)
        self._send(generation.next_attempt(ends_at_once=generation.is_unread))
        if generation.abort_reason is not None and not generation.is_unread:
            self._abort(generation, generation.abort_reason)

    def _place(self, generation: Generation) -> None:
        """Chooses the scheduler of the next attempt: the same one, or another if that accepts no requests.

        In the second case, the current attempt is aborted at the old scheduler or its successor.
        """
        engine = self._router.place(generation.message, keep=True)
        if engine != generation.engine:
            self._send(AbortMsg(generation.uid, generation.attempt, engine=generation.engine))
            generation.place(engine)

    def _abort(self, generation: Generation, reason: AbortReason) -> None:
        self._send(AbortMsg(generation.uid, generation.attempt, reason, generation.engine))

    def _refuse(self, culprits: Iterable[Generation]) -> None:
        for generation in culprits:
            reference = secrets.token_hex(6)
            log.error(
                "uid %d id=%s was the only running suspect and the scheduler died %d times, reference %s",
                generation.uid,
                generation.request_id,
                NUM_DEATHS_REFUSED,
                reference,
                extra=generation.log_extra,
            )
            self._place(generation)
            self._send(generation.next_attempt(ends_at_once=True))
            self._registry.fail(generation, internal_error(reference))

    def _send(self, message: TokenizeMsg | AbortMsg | DropBefore) -> None:
        try:
            self._ring.send(message)
        except ChannelFullError as error:
            # A tokenizer that has read nothing for so long hangs; its successor gets everything again.
            what = message.uid if isinstance(message, TokenizeMsg | AbortMsg) else type(message).__name__
            log.error("%s was not sent: %s", what, error)
