"""Starts and ends engines with the load (`--max-engines`), by the same command as an operator."""

import time
from collections import deque
from collections.abc import Callable

import msgspec

from extras.remote.config import RemoteConfig
from extras.remote.scaling_rule import Decision, Sample, decide
from messages.config.server import Config
from messages.control.admin import Answer, Ask, Done, Failed, ScaleProcess, Scaling
from messages.control.processes import ProcessStatus, kind_of
from messages.engine_names import SCHEDULER
from supervisor.console import Console
from supervisor.process_group import ProcessGroup

SAMPLE_S = 1.0
"""The interval of beats."""

FAILED_S = 60.0
"""The pause in decisions after a change that failed."""

Begin = Callable[[Ask, Callable[[Answer], None]], None]


class Autoscaler:
    """`begin` carries out a command. Every decision is recorded on the board and printed for the operator."""

    def __init__(self, config: Config, group: ProcessGroup, begin: Begin, console: Console):
        self._limits = limits = RemoteConfig.of(config).limits
        self._group = group
        self._begin = begin
        self._console = console
        self._history: deque[Sample] = deque()
        self._due_s = 0.0
        self._is_changing = False
        if limits.max_engines:
            self._report(Scaling(config.num_engines, limits.min_engines, limits.max_engines, "as it was started"))

    def look(self) -> None:
        """Makes a decision if it is due; call it in each turn."""
        group, now_s = self._group, time.monotonic()
        if not self._limits.max_engines or now_s < self._due_s or self._is_changing or not group.has_started:
            return
        self._due_s = now_s + SAMPLE_S
        sample = None if group.is_draining or group.is_stopping else self._take_sample(now_s)
        if sample is None or (self._history and sample.num_engines != self._history[-1].num_engines):
            self._history.clear()
        if sample is None:
            return
        scaling = group.board.scaling
        if scaling is not None and scaling.target != sample.num_engines:
            self._report(msgspec.structs.replace(scaling, target=sample.num_engines, text="as an operator has set it"))
        self._history.append(sample)
        kept_s = max(self._limits.up_s, self._limits.down_s)
        while len(self._history) > 1 and self._history[1].at_s <= now_s - kept_s:
            self._history.popleft()
        decision = decide(self._history, self._limits)
        if decision is not None:
            self._carry_out(decision, sample.num_engines)

    def _take_sample(self, now_s: float) -> Sample | None:
        """Returns the sample, or `None` while an engine starts, leaves, is replaced, or is dead."""
        engines = [child for child in self._group if kind_of(child.name) == SCHEDULER and not child.is_spare]
        statuses = [self._group.status(child) for child in engines]
        if any(child.is_passing or child.is_on_trial for child in engines) or not all(map(_is_settled, statuses)):
            return None
        gauges = [status.gauges for status in statuses]
        waiting_tokens = sum(each["waiting_tokens"] for each in gauges)
        load = sum(max(each["running"] / each["rows_all"], each["pages_in_use"] / each["pages_all"]) for each in gauges)
        return Sample(now_s, len(engines), waiting_tokens, load)

    def _carry_out(self, decision: Decision, num_before: int) -> None:
        scaling = self._group.board.scaling
        assert scaling is not None
        num_decisions = dict(scaling.num_decisions)
        num_decisions[decision.cause] = num_decisions.get(decision.cause, 0) + 1
        self._console.show(f"engines: {num_before} -> {decision.num_engines}: {decision.text}")
        low, high = self._limits.min_engines, self._limits.max_engines
        self._report(Scaling(decision.num_engines, low, high, decision.text, num_decisions))
        self._history.clear()
        self._is_changing = True

        def record(answer: Answer) -> None:
            self._is_changing = not isinstance(answer.result, Done | Failed)
            if isinstance(answer.result, Failed):
                self._due_s = time.monotonic() + FAILED_S
                text = f"{decision.text}; that has failed: {answer.result.message}"
                self._console.show(f"engines: {text}", "error")
                self._report(Scaling(num_before, low, high, text, num_decisions))

        self._begin(Ask(0, ScaleProcess(SCHEDULER, decision.num_engines)), record)

    def _report(self, scaling: Scaling) -> None:
        self._group.board.scaling = scaling


def _is_settled(status: ProcessStatus) -> bool:
    return status.is_serving and not status.is_leaving and not status.is_awaited and "rows_all" in status.gauges
