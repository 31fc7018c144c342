"""Why a request waits, in words and numbers, from the latest reports that the frontend has: no process is asked."""

import time
from typing import Literal

import msgspec

from frontend.http.stream import OpenStreams
from frontend.requests.generation import Generation
from frontend.requests.queue_place import expected_s
from frontend.requests.timeline import WaitReport
from frontend.service import Service
from messages.ring.timeline import RESOURCE_TEXTS, DelayedRow, PausedRow, QueueFacts, WaitingRow
from messages.ring.timeline import WaitsFor as QueueReason

WaitsFor = Literal[
    "process", "tokenizer", "scheduler", QueueReason, "share", "same_page", "load", "quarantine", "client", "choices"
]


class Waiting(msgspec.Struct, frozen=True, omit_defaults=True):
    """`text` is the complete reason; the other fields are its numbers, for programs.

    `heard_s`: age of the scheduler's report, if the reason comes from the scheduler. `num_before`: requests ahead in
    the queue. `estimated_s`: time until it leaves the queue, at the rate of the latest admissions.
    """

    reason: WaitsFor
    text: str
    heard_s: float | None = None
    num_before: int | None = None
    estimated_s: float | None = None
    needed_pages: int | None = None
    free_pages: int | None = None
    evictable_pages: int | None = None


class WaitReasons:
    """Finds the reasons for this frontend's requests, as of the time of its construction."""

    def __init__(self, service: Service, streams: OpenStreams):
        self._service = service
        self._trouble_of: dict[int, str] = {}
        """Processes that make no progress, by engine."""
        self._blocked_s = streams.find_blocked()

    def find(self, generation: Generation) -> Waiting | None:
        """Returns why an open request waits now, `None` if it is being processed."""
        timeline = generation.timeline
        if generation.final is not None:
            return self._find_reader(generation)
        if timeline.is_quarantined:
            return Waiting("quarantine", "the scheduler died twice with it; it runs again when no other suspect does")
        trouble = self._trouble(generation)
        match timeline.stage:
            case "hold" | "restart":
                return Waiting("process", f"waits for a process: {trouble or 'one is being replaced'}")
            case "tokenizer_queue" | "tokenize":
                return self._find_tokenizer(generation)
            case "scheduler_inbox":
                return Waiting("scheduler", f"the scheduler has not received it yet{_because(trouble)}")
            case _:
                return self._find_in_scheduler(generation)

    def _trouble(self, generation: Generation) -> str:
        engine = generation.engine
        if engine not in self._trouble_of:
            self._trouble_of[engine] = self._service.processes.find_trouble(engine)
        return self._trouble_of[engine]

    def _find_in_scheduler(self, generation: Generation) -> Waiting | None:
        report, trouble = generation.timeline.wait_report, self._trouble(generation)
        waiting = None if report is None else _waiting_of(report)
        if trouble:
            known = "" if waiting is None else f"; before that: {waiting.text}"
            return Waiting("process", f"{trouble}{known}", heard_s=None if waiting is None else waiting.heard_s)
        if waiting is not None:
            return waiting
        if generation.timeline.stage in ("queue", "encode", "preempted"):
            return Waiting("scheduler", "the scheduler has it and has planned no step since")
        return self._find_reader(generation)

    def _find_tokenizer(self, generation: Generation) -> Waiting:
        name = self._service.ring.worker_of(generation.uid) or "tokenizer"
        num_chars = int(self._service.processes.gauges(name).get("chars_in_hand", 0))
        work = f"; at its last beat it was processing {num_chars} characters of text" if num_chars else ""
        return Waiting("tokenizer", f"{name} has not passed it on yet{work}{_because(self._trouble(generation))}")

    def _find_reader(self, generation: Generation) -> Waiting | None:
        """Returns the reason if a client has not read its output."""
        blocked_s = self._blocked_s.get(generation.uid)
        if blocked_s is not None:
            num_tokens = len(generation.output_ids) - generation.num_taken
            return Waiting(
                "client", f"the client has read nothing for {blocked_s:.1f} s; {num_tokens} tokens wait for it"
            )
        if generation.final is None:
            return None
        return Waiting("choices", "it has ended; its response continues with other choices, or is still being written")


def _because(trouble: str) -> str:
    return f": {trouble}" if trouble else ""


def _waiting_of(report: WaitReport) -> Waiting:
    """Returns the scheduler's report in words."""
    heard_s = round(max(0, time.monotonic_ns() - report.planned_ns) / 1e9, 3)
    match report.row:
        case DelayedRow(by_uid=0):
            text = f"the step had no tokens left for its prompt: {_tokens(report.facts)}"
            return Waiting("tokens", text, heard_s)
        case DelayedRow(uid=uid, by_uid=by_uid) if uid == by_uid:
            return Waiting("load", "the KV cache of its prefix is being loaded from a lower tier (--kv-disk)", heard_s)
        case DelayedRow(by_uid=by_uid):
            text = f"request {by_uid} computes the next page that it needs, which it will then find in the cache"
            return Waiting("same_page", text, heard_s)
        case PausedRow():
            return Waiting("priority", "its row is paused: there are requests of a higher priority", heard_s)
        case WaitingRow():
            return _in_queue(report.row, report, heard_s)


def _in_queue(row: WaitingRow, report: WaitReport, heard_s: float) -> Waiting:
    """Returns the reason of a request in the queue: that of the first request, and its own position."""
    facts = report.facts
    waits_for = row.lacks or facts.waits_for
    match waits_for:
        case "rows":
            reason = f"all {facts.max_num_seqs} rows are taken (--max-num-seqs)"
        case "tokens":
            reason = f"the step has no tokens left: {_tokens(facts)}"
        case "pages":
            reason = _pages(row, facts)
        case "drain":
            reason = "the scheduler finishes its running requests and is then replaced"
        case "priority":
            reason = "it has the lowest priority, and there are requests of a higher one"
        case None:
            reason = "it gave up its row in this step"
        case resource:
            reason = RESOURCE_TEXTS[resource]
    name: WaitsFor = waits_for or "pages"
    if row.num_clients_before and name in ("rows", "tokens", "pages"):
        num_clients = row.num_clients_before
        clients = "1 client is before it" if num_clients == 1 else f"{num_clients} clients are before it"
        name, reason = "share", f"waits for its share: {clients}; {reason}"
    estimated_s = expected_s(report, row)
    rate = "" if estimated_s is None else f"; at the measured rate about {estimated_s:.1f} s"
    return Waiting(
        reason=name,
        text=f"{reason}; {_before(row.num_before)}{rate}",
        heard_s=heard_s,
        num_before=row.num_before,
        estimated_s=estimated_s,
        needed_pages=_needed_pages(row, facts),
        free_pages=facts.num_free_pages,
        evictable_pages=facts.num_evictable_pages,
    )


def _before(num_before: int) -> str:
    if not num_before:
        return "it is next in the queue"
    return "1 request is ahead of it" if num_before == 1 else f"{num_before} requests are ahead of it"


def _needed_pages(row: WaitingRow, facts: QueueFacts) -> int:
    """Returns the exact number for the first request, an upper bound for others: some of their pages may be cached."""
    return facts.num_needed_pages if facts.waits_for == "pages" and not row.num_before else row.num_pages


def _pages(row: WaitingRow, facts: QueueFacts) -> str:
    """Returns the page counts that block the queue: the first request decides, whichever request is meant."""
    needed = f"needs {facts.num_needed_pages} pages"
    if row.num_before:
        needed = f"needs up to {row.num_pages} pages, and the first request in the queue {facts.num_needed_pages}"
    return (
        f"{needed}; {facts.num_free_pages} are free and {facts.num_evictable_pages} could be evicted, of which "
        f"{facts.num_promised_pages} are reserved for the {facts.num_running} running rows"
    )


def _tokens(facts: QueueFacts) -> str:
    return (
        f"{facts.num_step_tokens} of {facts.max_num_batched_tokens} (--max-num-batched-tokens) went to "
        f"{facts.num_running} running rows"
    )
