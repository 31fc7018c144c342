"""The service behind all endpoints: opens and aborts requests, and fails them at the end of the run."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from frontend.errors import UnavailableError
from frontend.images.intake import ImageIntake
from frontend.links.peers import Peers
from frontend.links.processes import ProcessView
from frontend.links.queries import Queries
from frontend.links.ring import Ring
from frontend.metrics.http_requests import HttpRequests
from frontend.metrics.request_metrics import RequestMetrics
from frontend.requests.admission import Admission, estimate_tokens
from frontend.requests.body_budget import BodyBudget
from frontend.requests.costs import check_costs, estimate_prompts, is_long
from frontend.requests.deadlines import Deadlines
from frontend.requests.generation import Generation
from frontend.requests.hold import RestartHold
from frontend.requests.prompt_request import PromptRequest, check_generates, check_may_use, join_choices
from frontend.requests.quiet import find_quiet
from frontend.requests.recent_steps import RecentSteps
from frontend.requests.registry import Registry
from frontend.requests.timeline import Timeline
from frontend.requests.timelines import Timelines
from frontend.requests.trace import RequestTrace
from frontend.routing.router import Router
from messages.channels import Sender
from messages.columns import num_int32, unpack_int32
from messages.control.processes import QuietRequest
from messages.errors import ChannelFullError, ErrorInfo
from messages.ring.cache import CacheExplained, CacheListed
from messages.ring.peers import PeerAnswer, PeerAsk, ToFrontend
from messages.ring.replies import CacheFlushed, DecodeReply, EncodeReply, StepReplies, Usage, UserReply
from messages.ring.requests import AbortMsg, AbortReason, FramesLost, Stamps, TokenizeMsg
from messages.ring.timeline import ScheduleReport, Tokenized
from runtime.process import ProcessLink

NUM_SEED_BITS = 53
"""Seeds that we choose are reported to clients, so every JSON parser must be able to represent them exactly."""

BODIES_OF_FULL_SIZE = 16
"""Bodies of the largest size that fit into the memory for bodies."""

log = logging.getLogger("sluice.frontend")


class Service:
    """Owns the registry, admission, and the frontend's end of the ring."""

    def __init__(self, link: ProcessLink):
        self.config = config = link.config
        self._link = link
        self.incarnation = link.incarnation
        self.processes = ProcessView(has_started=link.incarnation > 1)
        hold_s = config.run.restart_hold_s
        self.admission = Admission(config.scheduling, self.processes, config.run.frontend_workers, hold_s)
        bodies_mb = config.http.max_bodies_mb or BODIES_OF_FULL_SIZE * config.http.max_body_mb
        budget_mb = max(config.http.max_body_mb, bodies_mb / config.run.frontend_workers)
        self.bodies = BodyBudget(int(budget_mb * 2**20), self.admission.record_refusal)
        self.images = ImageIntake(config, link.run_dir.images, link.uid_block, self.admission.record_refusal)
        self.metrics = RequestMetrics(config.facts.max_model_len)
        self.http_requests = HttpRequests()
        self.registry = Registry(link.uid_block, self._record_end, self._record_step)
        self.on_open: list[Callable[[RequestTrace, Sequence[PromptRequest]], None]] = []
        """Called before the choices of an HTTP request enter; it may raise `RequestError`."""
        self.on_response: list[Callable[[RequestTrace], None]] = []
        """Called when the response of an HTTP request is over, well or not."""
        self.on_end: list[Callable[[Timeline], None]] = [self.metrics.record_timeline]
        """Called when a request has ended and its client will receive no more of it."""
        self.timelines = Timelines(self.registry.find, config.http.slow_request_s, self._record_timeline)
        self.recent_steps = RecentSteps()
        self.ring = Ring(link, self._deliver)
        self.router = Router(self.processes, link.uid_block)
        self.queries = Queries(self.ring, self.processes, self.registry.next_uid, hold_s)
        self.hold = RestartHold(hold_s, self.processes, self._send, self._refuse)
        self.peers = Peers(
            self.processes, link.uid_block, self.registry.next_uid, lambda name: Sender(link.run_dir.socket(name))
        )
        self.deadlines = Deadlines(self._expire, self._end_here)
        self.sizes: dict[str, Callable[[], int]] = {}
        """More gauges, for data that endpoints keep."""
        self._seeds = random.Random(config.scheduling.seed)

    @property
    def name(self) -> str:
        """The current name of this process: a successor may have taken its place and its first name."""
        return self.processes.name_of_front(self._link.uid_block) or self._link.name

    def next_seed(self) -> int:
        """Returns a seed for a request without one."""
        return self._seeds.getrandbits(NUM_SEED_BITS)

    def check_admission(self, trace: RequestTrace) -> None:
        """Raises `UnavailableError` if no request of this client may enter now."""
        num_open, client = len(self.registry), trace.client.name
        is_full = num_open >= self.admission.limit
        own = [entry for entry in self.registry.all_open() if entry.message.client == client] if is_full else []
        self.admission.check(num_open, len(own))

    def open(
        self, request: PromptRequest, trace: RequestTrace, *, is_streamed: bool, timeout_s: float | None = None
    ) -> Generation:
        """Submits the only choice of `request` and returns its entry. Raises `UnavailableError`."""
        (generation,) = self.open_all([request], trace, is_streamed=is_streamed, timeout_s=timeout_s)
        return generation

    def open_all(
        self,
        requests: Sequence[PromptRequest],
        trace: RequestTrace,
        *,
        is_streamed: bool,
        timeout_s: float | None = None,
        has_parts: bool = False,
    ) -> list[Generation]:
        """Submits the choices of all `requests`, or none, and returns their entries, which share `changed`.

        With `has_parts` they are not sent; `open_part` sends their parts. Their number must not exceed the admission
        limit. Raises `UnavailableError`.
        """
        check_generates(requests, self.config.facts)
        check_costs(requests, self.config.facts, is_streamed=is_streamed)
        check_may_use(trace.client, requests, self.config.facts)
        self._check_queue(requests)
        for enter in self.on_open:
            enter(trace, requests)
        has_much_text = is_long(requests)
        changed = asyncio.Event()
        opened: list[Generation] = []
        by_prompt: list[list[Generation]] = []
        try:
            for request in requests:
                choices: list[Generation] = []
                for message in request.messages(trace.received_ns):
                    self.check_admission(trace)
                    params = message.sampling_params
                    params = msgspec.structs.replace(
                        params, is_streamed=is_streamed, priority=trace.client.bounded(params.priority)
                    )
                    uid = self.registry.next_uid()
                    group = opened[0].uid if opened else uid
                    message = msgspec.structs.replace(
                        message,
                        uid=uid,
                        sampling_params=params,
                        is_long=has_much_text,
                        group=group,
                        client=trace.client.name,
                        share=trace.client.share,
                    )
                    generation = Generation(message, trace.request_id, index=len(opened), changed=changed)
                    opened.append(generation)
                    choices.append(generation)
                    self._enter(generation, trace, timeout_s)
                by_prompt.append(choices)
            for choices in by_prompt if not has_parts else ():
                self._send_or_hold(choices)
        except UnavailableError:
            for generation in opened:
                self.leave(generation)
            raise
        return opened

    def open_part(self, message: TokenizeMsg, whole: Generation) -> Generation:
        """Sends a part of `whole`, which has been admitted, and returns its entry.

        Both share `changed`. A part is neither counted nor shown as a request. Raises `UnavailableError`.
        """
        stamps = Stamps(received_ns=time.monotonic_ns())
        message = msgspec.structs.replace(
            message,
            uid=self.registry.next_uid(),
            stamps=stamps,
            group=whole.message.group,
            client=whole.message.client,
            share=whole.message.share,
        )
        part = Generation(message, whole.request_id, changed=whole.changed, is_part=True)
        self._send_or_hold([part])
        self.registry.add(part)
        return part

    def _check_queue(self, requests: Sequence[PromptRequest]) -> None:
        if self.admission.limits_tokens:
            entries = self.registry.all_open()
            waiting = [entry.message for entry in entries if not (entry.first_token_ns or entry.is_part)]
            self.admission.check_tokens(_num_tokens(waiting), estimate_prompts(requests), len(self.registry))

    def _send_or_hold(self, choices: Sequence[Generation]) -> None:
        if self.processes.is_open:
            self._send(choices)
            return
        for generation in choices:
            generation.timeline.mark(time.monotonic_ns(), "hold")
            self.hold.add(generation)

    def _send(self, choices: Sequence[Generation]) -> None:
        """Sends requests that differ only in their uids and seeds as one message."""
        for generation in choices:
            generation.place(self.router.place(generation.message))
        now_ns = time.monotonic_ns()  # the tokenizer may have it before this process runs again
        try:
            self.ring.send(join_choices([generation.message for generation in choices]))
        except ChannelFullError as error:
            log.error("a request was refused: %s", error)
            raise UnavailableError("the tokenizer does not accept requests", "not_ready") from None
        for generation in choices:
            generation.is_sent = True
            generation.timeline.send(now_ns)

    def _refuse(self, generation: Generation, error: UnavailableError) -> None:
        """Ends a request whose hold has failed."""
        self.admission.record_refusal(error)
        self.registry.fail(generation, error.info)

    def _enter(self, generation: Generation, trace: RequestTrace, timeout_s: float | None) -> None:
        if timeout_s is None:
            timeout_s = self.config.http.request_timeout_s
        self.registry.add(generation)
        self.images.store.hold(image.digest for image in generation.message.images)
        generation.timeline.key = trace.client.key
        if timeout_s is not None:
            self.deadlines.watch(generation, trace.received_ns / 1e9 + timeout_s)
        trace.generations.append(generation)
        self.timelines.open(generation, trace.path)
        if self.config.run.log_requests:
            message = generation.message
            prompt = message.chat or message.prompt_text or unpack_int32(message.prompt_ids).tolist()
            log.info(
                "uid=%d id=%s prompt=%r params=%r",
                *(generation.uid, trace.request_id, prompt, message.sampling_params),
                extra=generation.log_extra,
            )

    def abort(self, generation: Generation, reason: AbortReason = "abort") -> None:
        """Asks the ring to end the request, which then sends the final reply. A request that was not sent ends here."""
        generation.abort_reason = reason
        if not generation.is_sent:
            self.registry.end(generation, _end_so_far(generation, reason))
            return
        try:
            self.ring.send(AbortMsg(generation.uid, generation.attempt, reason, generation.engine))
        except ChannelFullError as error:
            log.error("uid %d could not be aborted: %s", generation.uid, error, extra=generation.log_extra)

    def leave(self, generation: Generation) -> None:
        """Aborts a request whose client has left, unless it has ended. May be called again."""
        if generation.final is None and generation.has_listener:
            self.metrics.num_clients_gone += not generation.is_part
            generation.abandon()
            self.abort(generation)

    def record_response(self, trace: RequestTrace) -> None:
        """Cleans up after the response of an HTTP request, whether or not it succeeded."""
        trace.body.release()
        self.images.store.release(trace.images)
        trace.images.clear()
        for generation in trace.generations:
            self.leave(generation)
            if generation.final is not None:
                self.timelines.close(generation)
        for record in self.on_response:
            record(trace)

    def _record_timeline(self, timeline: Timeline) -> None:
        for record in self.on_end:
            record(timeline)

    def _deliver(self, message: ToFrontend) -> None:
        match message:
            case CacheFlushed() | EncodeReply() | DecodeReply() | CacheExplained() | CacheListed():
                self.queries.accept(message)
            case PeerAsk() | PeerAnswer():
                self.peers.accept(message)
            case ScheduleReport():
                self.timelines.record_schedule(message)
                self.recent_steps.record_plan(message)
            case Tokenized():
                self.timelines.record_tokenized(message)
            case FramesLost():
                raise AssertionError("the ring reports losses separately")
            case _:
                if isinstance(message, StepReplies):
                    self.recent_steps.record_end(message)
                self.registry.receive(message)

    def _record_step(self, step: StepReplies, now_ns: int, num_rows_after: dict[int, int]) -> None:
        self.metrics.record_step(now_ns, num_rows_after)
        self.timelines.record_step(step, now_ns)

    def _record_end(self, generation: Generation, final: UserReply) -> None:
        self.router.release(generation.uid)
        self.deadlines.forget(generation)
        self.hold.forget(generation)
        if generation.is_part:
            return
        self.images.store.release(image.digest for image in generation.message.images)
        self.admission.record_end()
        if generation.final is final:
            self._record_reply(generation)

    def _record_reply(self, generation: Generation) -> None:
        """Counts a request that has ended for its client."""
        self.metrics.record_end(generation)
        if not generation.has_listener:
            self.timelines.close(generation)

    def _expire(self, generation: Generation) -> None:
        self.abort(generation, "timeout")

    def _end_here(self, generation: Generation) -> None:
        """Ends a request as at its deadline, with its partial output, without waiting for the ring."""
        generation.finish(_end_so_far(generation, "timeout"))
        self._record_reply(generation)

    def end_without_ring(self, generation: Generation) -> None:
        """Ends a request with its output, as at a deadline, or as refused if it has none."""
        self.deadlines.forget(generation)
        if generation.output_ids:
            self._end_here(generation)
            return
        error = self.processes.not_ready().info
        generation.finish(UserReply(generation.uid, generation.attempt, "error", error=error))
        self._record_reply(generation)

    def find_quiet(self) -> tuple[QuietRequest, ...]:
        """Returns the requests without a recent token, from which the launcher detects stalls."""
        stall_s = self.config.run.stall_s
        if not stall_s:
            return ()
        return find_quiet(self.registry.all_sent(), self.timelines.steps, time.monotonic_ns(), stall_s / 2)

    def shut_down(self) -> None:
        """Fails every open request without waiting for the ring, and admits no more."""
        self.admission.is_draining = True
        self.registry.fail_all(
            ErrorInfo(503, "the server is shutting down", "service_unavailable", code="shutting_down")
        )

    def gauges(self) -> dict[str, float]:
        requests = self.registry.all_open()
        return {
            "requests": len(requests),
            "abandoned_requests": sum(generation.is_unread for generation in requests),
            "requests_on_hold": len(self.hold),
            "calls": len(self.queries) + len(self.peers),
            "deadlines": len(self.deadlines),
            "body_bytes": self.bodies.num_bytes,
            "timelines": self.timelines.num_live,
            "placed_requests": len(self.router),
            "is_draining": float(self.admission.is_draining),
            **self.images.gauges(),
            **{name: size() for name, size in self.sizes.items()},
        }


def _num_tokens(messages: Iterable[TokenizeMsg]) -> int:
    """Returns an estimate of the total number of tokens in the prompts."""
    return sum(
        estimate_tokens(message.prompt_text, message.prompt_ids, message.chat, message.images) for message in messages
    )


def _end_so_far(generation: Generation, reason: AbortReason) -> UserReply:
    """Returns a final reply with the data that is known here."""
    message = generation.message
    usage = Usage(prompt_tokens=num_int32(message.prompt_ids), completion_tokens=len(generation.output_ids))
    return UserReply(generation.uid, generation.attempt, reason, usage=usage, stamps=message.stamps)
