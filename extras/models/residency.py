"""Which models are in memory: loads start as they fit, in order of their first request, and unloads make room.

Plain Python without I/O. The router notes requests and the host's reports here, calls `plan` after each change and once
a second, and follows the plan. Times are seconds of one monotonic clock.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

from extras.models.messages import Description, ModelReport, Models
from frontend.metrics.distribution import Distribution

StateOf = Literal["unloaded", "loading", "loaded"]
UnloadReason = Literal["memory", "keep_alive", "request"]

ORDER_S = 5.0
"""After this time an order that the host's reports do not show is forgotten: the host may have died with it."""

LOAD_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Plan(NamedTuple):
    """`ready`: models whose servers may get requests once they answer. `start` and `stop`: orders for the host, once.
    `waits` and `refused`: why other wanted models are not loaded yet, or cannot be."""

    ready: frozenset[str]
    start: tuple[str, ...]
    stop: tuple[str, ...]
    waits: dict[str, str]
    refused: dict[str, str]


@dataclass
class _Resident:
    """`started_s`, `stopped_s`: when the order was planned that the reports do not show yet. `begun_s`: that of a load
    that has not ended, else 0. `used_s`: the start or end of the latest request, or the end of the load."""

    report: ModelReport
    keep_alive_s: float
    started_s: float = -inf
    stopped_s: float = -inf
    begun_s: float = 0.0
    used_s: float = 0.0
    num_open: int = 0

    @property
    def num_bytes(self) -> int:
        return self.report.description.num_bytes if self.report.description else 0

    def is_settled(self, now_s: float) -> bool:
        """True while the model runs and is not asked to stop."""
        return self.report.process == "running" and now_s - self.stopped_s >= ORDER_S

    def is_taken(self, now_s: float) -> bool:
        """True while the model takes memory, or will when its order has been obeyed."""
        return self.report.process != "none" or now_s - self.started_s < ORDER_S


@dataclass
class _Draft:
    """What a plan has decided so far. `settled`: the models that run and are not being stopped. `taken`: these, and
    those that start or stop. `used_bytes` and `stays_bytes`: what they take, now and once all `victims` have gone."""

    requested: Sequence[str]
    before: frozenset[str]
    settled: set[str]
    taken: set[str]
    used_bytes: int
    stays_bytes: int
    may_close: bool = True
    victims: set[str] = field(default_factory=set[str])
    start: list[str] = field(default_factory=list[str])
    stop: dict[str, UnloadReason] = field(default_factory=dict[str, UnloadReason])
    refused: dict[str, str] = field(default_factory=dict[str, str])


class Residency:
    """`keep_alive_s`: how long a model without requests stays in memory, `inf` for ever, unless `keep` has set it."""

    def __init__(self, limit_bytes: int, keep_alive_s: float):
        self.limit_bytes = limit_bytes
        self.unloads: Counter[UnloadReason] = Counter()
        self.load_seconds = Distribution(LOAD_BOUNDS_S)
        self._keep_alive_s = keep_alive_s
        self._models: dict[str, _Resident] = {}
        self._victims: frozenset[str] = frozenset()
        self._to_unload: set[str] = set()

    def update(self, models: Models) -> None:
        """Takes the host's reports."""
        for report in models.models:
            model = self._models.setdefault(report.name, _Resident(report, self._keep_alive_s))
            if (report.process, report.description) != (model.report.process, model.report.description):
                model.started_s = model.stopped_s = -inf
            model.report = report

    def record_ready(self, name: str, now_s: float) -> None:
        """The model has been loaded: its keep-alive begins."""
        model = self._models[name]
        model.used_s = now_s
        if model.begun_s:
            self.load_seconds.add(now_s - model.begun_s)
            model.begun_s = 0.0

    def opened(self, name: str, now_s: float) -> None:
        """A request goes to the model's server; `closed` must follow."""
        self._models[name].num_open += 1
        self._models[name].used_s = now_s

    def closed(self, name: str, now_s: float) -> None:
        self._models[name].num_open -= 1
        self._models[name].used_s = now_s

    def record_busy(self, name: str, now_s: float) -> None:
        """The model's server has not been stopped, for it has requests that were not noted here."""
        self._models[name].stopped_s, self._models[name].used_s = -inf, now_s

    def keep(self, name: str, keep_alive_s: float) -> None:
        """Sets how long the model stays in memory after a request."""
        self._models[name].keep_alive_s = keep_alive_s

    def unload(self, name: str) -> None:
        """Unloads the model once its open requests have ended; no-op if it is unloaded."""
        if self._models[name].report.process != "none" or self._models[name].started_s > -inf:
            self._to_unload.add(name)

    def num_open(self, name: str) -> int:
        return self._models[name].num_open

    def expires_s(self, name: str) -> float:
        """Returns when the model is unloaded unless it is used before."""
        return self._models[name].used_s + self._models[name].keep_alive_s

    @property
    def used_bytes(self) -> int:
        return sum(model.num_bytes for model in self._models.values() if model.report.process != "none")

    def plan(self, requested: Sequence[str], now_s: float) -> Plan:
        """Plans for the models that requests wait for, the oldest request first. A victim is a model that must go: it
        gets no new requests, and is stopped when its open ones have ended. Models without a description are left out.
        """
        draft = self._draft(requested, now_s)
        self._unload_unwanted(draft, now_s)
        for position, name in enumerate(requested):
            if name not in draft.taken and not self._plan_load(draft, name, frozenset(requested[:position])):
                break
        self._victims, ready = frozenset(draft.victims), frozenset(draft.settled - draft.victims)
        self.unloads.update(draft.stop.values())
        for name in draft.start:
            model = self._models[name]
            model.started_s = model.begun_s = model.used_s = now_s
        for name in draft.stop:
            self._models[name].stopped_s = now_s
        waits = {name: self._why_waiting(draft, name) for name in requested if name not in ready | draft.refused.keys()}
        return Plan(ready, tuple(draft.start), tuple(draft.stop), waits, draft.refused)

    def _draft(self, requested: Sequence[str], now_s: float) -> _Draft:
        settled = {name for name, model in self._models.items() if model.is_settled(now_s)}
        taken = {name for name, model in self._models.items() if model.is_taken(now_s)}
        for name in settled:
            self._models[name].used_s = self._models[name].used_s or now_s
        leaving = {name for name in taken - settled if self._models[name].report.process != "none"}
        return _Draft(requested, self._victims, settled, taken, self._bytes_of(taken), self._bytes_of(taken - leaving))

    def _unload_unwanted(self, draft: _Draft, now_s: float) -> None:
        """Unloads models by request, after the requests that came before, and those whose keep-alive is over."""
        self._to_unload &= draft.taken
        for name in draft.settled:
            is_idle = not self.num_open(name)
            if name in self._to_unload and (name not in draft.requested or name in draft.before):
                reason = "request"
            elif is_idle and name not in draft.requested and self.expires_s(name) <= now_s:
                reason = "keep_alive"
            else:
                continue
            draft.victims.add(name)
            draft.stays_bytes -= self._models[name].num_bytes
            if is_idle:
                draft.stop[name] = reason

    def _plan_load(self, draft: _Draft, name: str, earlier: frozenset[str]) -> bool:
        """Starts the model if it fits, else chooses its victims; later models never get the memory that it waits for.
        False: it must wait until others have been loaded, and later models behind it."""
        model = self._models[name]
        description = model.report.description
        if description is None:
            return True
        if description.error or model.num_bytes > self.limit_bytes:
            draft.refused[name] = description.error or self._too_large(name, description)
            return True
        if (excess := draft.stays_bytes + model.num_bytes - self.limit_bytes) > 0:
            victims = self._choose_victims(draft, excess, earlier)
            if not victims:
                return False
            draft.victims |= victims
            draft.stays_bytes -= self._bytes_of(victims)
            if any(self._models[victim].num_open for victim in victims):
                draft.may_close = False
            else:
                draft.stop |= dict.fromkeys(sorted(victims), "memory")
        draft.stays_bytes += model.num_bytes
        if draft.used_bytes + model.num_bytes <= self.limit_bytes:
            draft.used_bytes += model.num_bytes
            draft.start.append(name)
        return True

    def _choose_victims(self, draft: _Draft, excess: int, earlier: frozenset[str]) -> set[str]:
        """Returns the models that make room: those without open requests first, then those of the latest plan, then the
        least recently used. Never a model with `earlier` requests, or whose load has ended and whose requests have not
        been sent to it yet. Empty: there are not enough."""
        ranked = sorted(
            (self._models[name].num_open > 0, name not in draft.before, self._models[name].used_s, name)
            for name in draft.settled - draft.victims - earlier
            if (name not in draft.requested or name in draft.before)
            and (draft.may_close or not self._models[name].num_open)
        )
        spare = self._bytes_of(name for *_, name in ranked) - excess
        if spare < 0:
            return set()
        victims: set[str] = set()
        for *_, name in reversed(ranked):
            if (num_bytes := self._models[name].num_bytes) <= spare:
                spare -= num_bytes
            else:
                victims.add(name)
        return victims

    def _bytes_of(self, names: Iterable[str]) -> int:
        return sum(self._models[name].num_bytes for name in names)

    def _why_waiting(self, draft: _Draft, name: str) -> str:
        if self._models[name].report.description is None:
            return "its files are being read"
        if name in draft.victims or name in draft.taken - draft.settled:
            return "it is being unloaded"
        if name in draft.start:
            return "it is being loaded"
        others = [f"{other} ({self.num_open(other)} open requests)" for other in sorted(draft.taken)]
        return f"it waits for memory that others take: {', '.join(others)}"

    def _too_large(self, name: str, description: Description) -> str:
        weights, cache, limit = (
            f"{num_bytes / 2**30:.4g} GiB"
            for num_bytes in (description.weight_bytes, description.cache_bytes, self.limit_bytes)
        )
        return (
            f"the model {name} does not fit: its weights take {weights} and its KV cache {cache}, and all loaded "
            f"models together may take {limit} (--models-memory-gb)"
        )
