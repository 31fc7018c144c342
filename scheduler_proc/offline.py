"""Both halves of the scheduler in one process: prompts of token ids in, token ids out.

    engine = OfflineEngine(config)
    outputs = engine.generate([[1, 2, 3], [4, 5]], [SamplingParams(max_tokens=16, temperature=0.0)] * 2)

It needs torch, numpy and msgspec (Triton on a GPU), but none of the other processes' libraries.
"""

import gc
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from messages.columns import INT32, pack_int32, runs_of, unpack_int64
from messages.config.server import Config
from messages.errors import ErrorInfo, UsageError
from messages.ring.replies import DetokenizeMsg, FinishedRow, FinishReason, ToDetokenizer, Usage
from messages.ring.requests import SamplingParams, Stamps, UserMsg
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.report import Report
from scheduler_proc.deciding.pages.page_tiers import LOAD_TIMEOUT_S
from scheduler_proc.deciding.scheduler import GrammarSource
from scheduler_proc.deciding_half import close_store, make_scheduler
from scheduler_proc.step_times import StepTimes
from scheduler_proc.stepper import Stepper

MakeGrammars = Callable[[Callable[[], None]], GrammarSource]


@dataclass(frozen=True)
class Output:
    """The result of one prompt. `error` is set if the finish reason is "error": this prompt was refused or failed."""

    token_ids: list[int]
    finish_reason: FinishReason
    usage: Usage
    error: ErrorInfo | None = None


def no_report(text: str, fraction: float | None) -> None:
    """Ignores the progress of loading."""


class OfflineEngine:
    """A model in this process, with its prefix cache."""

    def __init__(self, config: Config, report: Report = no_report, make_grammars: MakeGrammars | None = None):
        """Loads the model. Raises `BootError` if it cannot be loaded.

        `make_grammars` takes a function that wakes the engine, as `GrammarBuilder` does; without it requests cannot
        have a grammar.
        """
        runner = load_runner(config, report)
        self.gauges: dict[str, float] = {}
        self._wake = threading.Event()
        self._has_grammars = make_grammars is not None
        grammars = None if make_grammars is None else make_grammars(self._wake.set)
        self._scheduler = make_scheduler(config, runner, grammars, wake=self._wake.set)
        self._stepper = Stepper(self._scheduler, runner, StepTimes())
        self._next_uid = 0
        self._runner = runner
        # A full collection in mid-step would traverse all objects made by loading.
        gc.collect()
        gc.freeze()

    @property
    def degraded(self) -> str:
        """Reports missing and slower parts, such as a kernel that plain torch replaces; empty if there are none."""
        return self._runner.degraded

    def generate(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[Output]:
        """Returns the output of each prompt with its parameters.

        Raises `UsageError` for parameters that need text, and for logprobs: only a server supports them.
        """
        if len(prompts) != len(params):
            raise UsageError(f"{len(prompts)} prompts and {len(params)} sampling parameters: give one for each")
        for own in params:
            _refuse_what_needs_text(own, has_grammars=self._has_grammars)
        first_uid, self._next_uid = self._next_uid, self._next_uid + len(prompts)
        for uid, (prompt, own) in enumerate(zip(prompts, params, strict=True), first_uid):
            self._scheduler.receive(UserMsg(uid, 0, pack_int32(prompt), own, Stamps()))
        inbox = _Inbox()
        try:
            while True:
                start_s = time.monotonic()
                batch = self._stepper.plan()
                inbox.take(self._scheduler.pop_replies())
                if batch is None and not self._stepper.has_step:
                    if self._scheduler.is_idle:
                        break
                    self._wake.wait(LOAD_TIMEOUT_S)  # until pages have come from a lower tier, or a grammar is compiled
                    self._wake.clear()
                    continue
                self._stepper.step(batch, start_s)
        finally:
            self._stepper.close()
        self.gauges = self._scheduler.gauges()
        return [inbox.output(uid) for uid in range(first_uid, self._next_uid)]

    def close(self) -> None:
        """Saves the cache to the tiers below it, if there are any, and closes them."""
        close_store(self._scheduler, self._runner)


class _Inbox:
    """The tokens and the end of each request, as the detokenizer would receive them."""

    def __init__(self) -> None:
        self._token_ids: dict[int, array[int]] = {}
        self._finished: dict[int, FinishedRow] = {}

    def take(self, replies: Sequence[ToDetokenizer]) -> None:
        for reply in replies:
            if isinstance(reply, DetokenizeMsg):
                for uid, token_ids in zip(
                    unpack_int64(reply.uids), runs_of(reply.token_ids, reply.num_tokens), strict=True
                ):
                    self._token_ids.setdefault(uid, array(INT32)).extend(token_ids)
                self._finished.update((row.uid, row) for row in reply.finished)

    def output(self, uid: int) -> Output:
        row = self._finished[uid]
        return Output(list(self._token_ids.get(uid, ())), row.finish_reason, row.usage, row.error)


def _refuse_what_needs_text(params: SamplingParams, *, has_grammars: bool) -> None:
    unwanted = {
        "stop": bool(params.stop),
        "bad_words": bool(params.bad_words),
        "echo": params.echo,
        "grammar": params.grammar is not None and not has_grammars,
        "dry.sequence_breakers": params.dry is not None and bool(params.dry.sequence_breakers),
        "num_logprobs": params.num_logprobs is not None,
        "num_prompt_logprobs": params.num_prompt_logprobs is not None,
    }
    names = ", ".join(name for name, is_sent in unwanted.items() if is_sent)
    if names:
        raise UsageError(f"{names}: only a server does this; without one, prompts and outputs are token ids alone")
