"""The latest steps as reported to this frontend, recorded only while a viewer asks for them."""

import time
from collections import defaultdict, deque
from collections.abc import Iterable
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from messages.columns import num_int32
from messages.ring.peers import StepEnd, StepPlan
from messages.ring.replies import StepReplies
from messages.ring.timeline import ScheduleReport

MAX_STEPS = 1024
WINDOW_NS = 2_000_000_000
"""Steps are returned for this long, and recorded for this long after the last `watch`."""


class StepSpan(msgspec.Struct, frozen=True, array_like=True):
    """A step with its numbers of prompt and decode tokens. `end_ns` is null while it runs."""

    begin_ns: int
    end_ns: int | None
    num_prompt_tokens: int
    num_decode_tokens: int
    engine: int = 1


class RecentSteps:
    """Plans of the latest steps, and the ends of those that produced tokens for requests of this frontend."""

    def __init__(self) -> None:
        self._until_ns = 0
        self._plans: deque[StepPlan] = deque(maxlen=MAX_STEPS)
        self._ends: deque[StepEnd] = deque(maxlen=MAX_STEPS)

    def watch(self) -> tuple[tuple[StepPlan, ...], tuple[StepEnd, ...]]:
        """Returns what was recorded, always with the latest plan, and records steps from now on."""
        now_ns = time.monotonic_ns()
        self._until_ns = now_ns + WINDOW_NS
        while len(self._plans) > 1 and self._plans[0].planned_ns < now_ns - WINDOW_NS:
            self._plans.popleft()
        while self._ends and self._ends[0].committed_ns < now_ns - WINDOW_NS:
            self._ends.popleft()
        return tuple(self._plans), tuple(self._ends)

    def record_plan(self, report: ScheduleReport) -> None:
        if self._until_ns and self._is_watched():
            num_prompt_tokens = sum(chunk.end - chunk.start for chunk in report.chunks)
            tokens = num_prompt_tokens, report.facts.num_step_tokens
            plan = StepPlan(report.planned_ns, report.step_id, *tokens, report.engine)
            self._plans.append(plan)

    def record_end(self, step: StepReplies) -> None:
        if self._until_ns and step.committed_ns and self._is_watched():
            num_tokens = num_int32(step.token_ids) + sum(num_int32(final.token_ids) for final in step.finals)
            self._ends.append(StepEnd(step.committed_ns, step.step_id, num_tokens, step.engine))

    def _is_watched(self) -> bool:
        """True if `watch` was called lately; otherwise the record is dropped."""
        if time.monotonic_ns() > self._until_ns:
            self._until_ns = 0
            self._plans.clear()
            self._ends.clear()
        return bool(self._until_ns)


def join_steps(plans: Iterable[StepPlan], ends: Iterable[StepEnd]) -> dict[str, StepSpan]:
    """Returns the steps by stable keys, oldest first per engine.

    `plans` and `ends` are the records of all frontends.
    """
    plans_of, ends_of = defaultdict[int, list[StepPlan]](list), defaultdict[int, list[StepEnd]](list)
    for plan in plans:
        plans_of[plan.engine].append(plan)
    for end in ends:
        ends_of[end.engine].append(end)
    found: dict[str, StepSpan] = {}
    for engine in sorted(plans_of.keys() | ends_of.keys()):
        for key, span in _join_steps(plans_of[engine], ends_of[engine]).items():
            if engine == 1:
                found[key] = span
            else:
                found[f"{engine}.{key}"] = msgspec.structs.replace(span, engine=engine)
    return found


def _join_steps(plans: Iterable[StepPlan], ends: Iterable[StepEnd]) -> dict[str, StepSpan]:
    """Returns the steps of one engine, by the time of their plan or end.

    A step begins when it is planned. If the plan is unknown, or another step was running, it begins when that step
    ends. A step that produced no token ends when the next one is planned: its prompts continue in the next step.
    """
    num_tokens: dict[tuple[int, int], int] = {}
    for end in ends:
        key = end.committed_ns, end.step_id
        num_tokens[key] = num_tokens.get(key, 0) + end.num_tokens
    by_id = {plan.step_id: plan for plan in sorted(set(plans))}  # ids start again with each scheduler
    found: list[_KnownStep] = []
    for (committed_ns, step_id), num in num_tokens.items():
        plan = by_id.get(step_id)
        if plan is not None and plan.planned_ns <= committed_ns:
            found.append(_KnownStep(plan.planned_ns, committed_ns, by_id.pop(step_id), plan.num_tokens))
        else:
            found.append(_KnownStep(committed_ns, committed_ns, None, num))
    found += [_KnownStep(plan.planned_ns, None, plan, plan.num_tokens) for plan in by_id.values()]
    return _lay_out(sorted(found, key=lambda step: step.known_ns))


class _KnownStep(NamedTuple):
    """A step. `known_ns` is when it was planned or, without a plan, committed."""

    known_ns: int
    committed_ns: int | None
    plan: StepPlan | None
    num_tokens: int


def _lay_out(found: list[_KnownStep]) -> dict[str, StepSpan]:
    spans: dict[str, StepSpan] = {}
    last_ns = 0
    for step, after in zip_longest(found, found[1:]):
        if step.committed_ns is None and after is not None and after.plan is None:
            continue  # its end was recorded, and has expired
        begin_ns = last_ns if step.plan is None else max(step.known_ns, last_ns)
        end_ns = step.committed_ns or (after and after.known_ns)
        num_prompt = step.plan.num_prompt_tokens if step.plan else 0
        if begin_ns:  # unknown for the very first step
            spans[str(step.known_ns)] = StepSpan(begin_ns, end_ns, num_prompt, step.num_tokens - num_prompt)
        last_ns = max(begin_ns, end_ns or 0)
    return spans
