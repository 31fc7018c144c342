"""What the endpoints share: requests are opened, aborted and, at the end of the run, failed here."""

import logging
import random

from frontend.admission import Admission
from frontend.errors import UnavailableError
from frontend.generation import Generation
from frontend.processes import ProcessView
from frontend.registry import Registry
from frontend.ring import Ring
from frontend.trace import Trace
from messages.columns import pack_int32
from messages.config import Config
from messages.errors import ChannelFullError, ErrorInfo
from messages.requests import AbortMsg, SamplingParams, Stamps, TokenizeMsg
from messages.run_dir import RunDir

NUM_SEED_BITS = 53
"""Seeds that we choose are reported to the client, so every JSON reader must keep them exact."""

log = logging.getLogger("sluice.frontend")


class Service:
    """Owns the registry, admission, and the frontend's end of the ring."""

    def __init__(self, config: Config, run_dir: RunDir, incarnation: int):
        self.config = config
        self.incarnation = incarnation
        self.processes = ProcessView()
        self.admission = Admission(config.scheduling, self.processes)
        self.registry = Registry(incarnation, self.admission.note_end)
        self.ring = Ring(run_dir, self.registry)
        self._seeds = random.Random(config.scheduling.seed)

    def next_seed(self) -> int:
        """Returns a seed for a request that brings none."""
        return self._seeds.getrandbits(NUM_SEED_BITS)

    def check_admission(self) -> None:
        """Raises `UnavailableError` where no request may enter now."""
        self.admission.check(len(self.registry))

    def open(
        self, prompt: str | list[int], params: SamplingParams, trace: Trace, *, wakes_at_tokens: bool
    ) -> Generation:
        """Sends a new request on its way and returns its entry. Raises `UnavailableError`."""
        self.check_admission()
        message = TokenizeMsg(
            uid=self.registry.next_uid(),
            attempt=0,
            prompt_text=prompt if isinstance(prompt, str) else None,
            prompt_ids=b"" if isinstance(prompt, str) else pack_int32(prompt),
            sampling_params=params,
            stamps=Stamps(received_ns=trace.received_ns),
        )
        try:
            self.ring.send(message)
        except ChannelFullError as error:
            log.error("a request was refused: %s", error)
            raise UnavailableError("the tokenizer does not take requests", "not_ready") from None
        generation = Generation(message, trace.request_id, wakes_at_tokens=wakes_at_tokens)
        self.registry.add(generation)
        trace.generation = generation
        if self.config.run.log_requests:
            log.info("uid=%d id=%s prompt=%r params=%r", generation.uid, trace.request_id, prompt, params)
        return generation

    def abort(self, generation: Generation) -> None:
        """Asks the ring to end the request; its final reply comes as for any other end."""
        generation.is_aborted = True
        try:
            self.ring.send(AbortMsg(generation.uid, generation.attempt))
        except ChannelFullError as error:
            log.error("uid %d could not be aborted: %s", generation.uid, error)

    def leave(self, generation: Generation) -> None:
        """The client of `generation` is gone: aborts it unless it has ended. May be called again."""
        if generation.final is None and generation.has_listener:
            generation.abandon()
            self.abort(generation)

    def shut_down(self) -> None:
        """Ends every open request with an error, without waiting for the ring."""
        self.registry.fail_all(
            ErrorInfo(503, "the server is shutting down", "service_unavailable", code="shutting_down")
        )

    def gauges(self) -> dict[str, float]:
        requests = self.registry.all_open()
        return {
            "requests": len(requests),
            "abandoned_requests": sum(not generation.has_listener for generation in requests),
            "is_draining": float(self.admission.is_draining),
        }
