"""Requests that wait until their model's server may get them: loads and unloads by the policy in `residency.py`."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import InitVar, dataclass, field
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from extras.models.config import ModelEntry
from extras.models.messages import DescribeModel, ModelReport, Models, StartModel, StopModel, ToHost
from extras.models.model_table import ModelState, ModelTable
from extras.models.residency import ORDER_S, Plan, Residency
from frontend.errors import UnavailableError
from messages.errors import ErrorInfo, RequestError

Waiter = asyncio.Future[str]


class LoadingError(UnavailableError):
    """The 503 for a request that has waited for too long; `headers` say how far the load is."""

    def __init__(self, message: str, state: ModelState):
        super().__init__(message, "model_loading")
        progress = () if state.fraction is None else ((b"x-model-progress", b"%.3f" % state.fraction),)
        self.headers = ((b"x-model-phase", state.phase.encode("latin-1", "replace")), *progress)


class Lease(NamedTuple):
    """A server that gets a request. `load_ms` is `None` if the request did not wait for it."""

    name: str
    url: str
    load_ms: float | None = None


@dataclass(eq=False)
class Loads:
    """`ask` sends to the host. A request waits for at most `hold_s`, and at most `max_waiting` do."""

    _entry_list: InitVar[Iterable[ModelEntry]]
    _table: ModelTable
    _residency: Residency
    _ask: Callable[[ToHost], None]
    _hold_s: float
    _max_waiting: int
    _waiting: dict[str, list[Waiter]] = field(default_factory=dict[str, list[Waiter]])
    """By model, in order of the first request for each; empty for one that is loaded by command."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    is_leaving: bool = False
    """Another router decides now what is unloaded without need."""
    _looks: dict[str, float] = field(default_factory=dict[str, float])
    """When the host was asked to read files again; what it reported before it got the order is not the answer."""

    def __post_init__(self, _entry_list: Iterable[ModelEntry]):
        self._plan = Plan(frozenset(), (), (), {}, {})
        self._entries = {entry.name: entry for entry in _entry_list}
        self._table.on_change = self.advance
        self._table.on_failure = self._record_failure
        self._table.on_served = lambda name: self._residency.record_ready(name, time.monotonic())

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def update(self, models: Models) -> None:
        """Takes a report of the host; with the first one, loads the models that are to be loaded at the start."""
        before, is_first = self._table.reports, not self._table.is_known.is_set()
        self._residency.update(Models(tuple(map(self._without_old_error, models.models))))
        for name, process in ((report.name, report.process) for report in models.models):
            if is_first or (process == "none" and before[name].process != process):
                keep_alive_s = self._entries[name].keep_alive_s
                self._residency.keep(name, keep_alive_s if keep_alive_s >= 0 else inf)
        self._table.update(models)
        for name in [entry.name for entry in self._entries.values() if entry.preload and is_first]:
            self._add_requested(name)
            self.advance()

    @asynccontextmanager
    async def lease(self, name: str, keep_alive_s: float | None, *, is_watching: bool) -> AsyncGenerator[Lease]:
        """Waits until the model's server may get a request; the request has ended at the end of the block.

        One that is only watching neither loads a model nor keeps it: without a server it gets a 503.
        `keep_alive_s`, if given, decides how long the model stays loaded without requests, until it is unloaded. Raises
        `UnavailableError` if the wait is too long or the model cannot be loaded, `RequestError` (400) if it is larger
        than the memory.
        """
        if is_watching:
            if not (url := self._table.url(name)):
                state = self._table.state(name)
                raise LoadingError(f"the model {name} is {state.value}", state)
            yield Lease(name, url)
            return
        began_s = time.monotonic()
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._add_requested(name).append(waiter)
        self.advance()
        must_wait = not waiter.done()
        try:
            if must_wait and self.num_waiting > self._max_waiting:
                raise UnavailableError("too many requests wait for models that are being loaded", "queue_full")
            async with asyncio.timeout(self._hold_s):
                url = await waiter
        except BaseException as error:
            self._give_up(name, waiter)
            if isinstance(error, TimeoutError):
                raise self._too_late(name) from None
            raise
        if keep_alive_s is not None:
            self._residency.keep(name, keep_alive_s)
        try:
            yield Lease(name, url, (time.monotonic() - began_s) * 1e3 if must_wait else None)
        finally:
            self._residency.closed(name, time.monotonic())
            self.advance()

    def suspect(self, lease: Lease) -> None:
        """The server has closed the connection of the request, whose next `lease` waits until it serves again."""
        self._table.suspect(lease.name, lease.url)

    def load(self, name: str) -> None:
        """Loads the model, though no request waits for it. Raises `RequestError` (400) if it cannot be loaded."""
        self._add_requested(name)
        self.advance()
        if refusal := self._plan.refused.get(name):
            raise _refused(refusal)

    def unload(self, name: str) -> None:
        """Unloads the model when its open requests have ended."""
        self._residency.unload(name)
        self.advance()

    def advance(self) -> None:
        """Gives the orders that are due, and lets requests go to servers that are ready. Call it once a second, too."""
        now_s = time.monotonic()
        plan = self._plan = self._residency.plan(tuple(self._waiting), now_s)
        for name in plan.start:
            self._ask(StartModel(name))
        for name in plan.stop if self._waiting or not self.is_leaving else ():
            task = asyncio.create_task(self._stop(name))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        for name in tuple(self._waiting):
            if name in plan.refused:
                self._fail(name, _refused(plan.refused[name]))
            elif name in plan.ready and (url := self._table.url(name)):
                for waiter in self._waiting.pop(name):
                    if not waiter.done():
                        self._residency.opened(name, now_s)
                        waiter.set_result(url)

    def _add_requested(self, name: str) -> list[Waiter]:
        """Returns the requests that wait for the model. If its files could not be read, they are read again."""
        report = self._table.reports[name]
        if name not in self._waiting and (report.description is None or report.description.error):
            self._ask(DescribeModel(name))
            self._looks[name] = time.monotonic()
            self._residency.update(Models((replace(report, description=None),)))
        return self._waiting.setdefault(name, [])

    def _without_old_error(self, report: ModelReport) -> ModelReport:
        """The host reports that it reads a model's files before it reports their error."""
        is_old = time.monotonic() - self._looks.get(report.name, -inf) < ORDER_S
        if is_old and report.description is not None and report.description.error:
            return replace(report, description=None)
        self._looks.pop(report.name, None)
        return report

    async def _stop(self, name: str) -> None:
        """Stops the model's server, unless it has requests that are not of this router, such as background ones."""
        if await self._table.has_requests(name):
            self._residency.record_busy(name, time.monotonic())
        else:
            self._ask(StopModel(name))

    def _record_failure(self, name: str, error: str) -> None:
        self._fail(name, UnavailableError(f"the model {name} could not be loaded: {error}", "model_failed"))

    def _fail(self, name: str, error: RequestError) -> None:
        for waiter in self._waiting.pop(name, ()):
            if not waiter.done():
                waiter.set_exception(error)

    def _give_up(self, name: str, waiter: Waiter) -> None:
        waiters = self._waiting.get(name, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[name]
                self.advance()
        elif not waiter.cancelled() and waiter.exception() is None:  # it came when the client left
            self._residency.closed(name, time.monotonic())

    def _too_late(self, name: str) -> LoadingError:
        state = self._table.state(name)
        reason = state.phase or self._plan.waits.get(name, "it is being loaded")
        return LoadingError(f"the model {name} is not loaded yet: {reason}", state)


def _refused(text: str) -> RequestError:
    return RequestError(ErrorInfo(400, text, param="model", code="model_refused"))
