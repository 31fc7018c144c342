"""Random requests, deaths and slow hosts against the policy of loads: its laws hold, and every request is served."""

from collections import deque
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extras.models.messages import Description, ModelReport, Models, ProcessOf
from extras.models.residency import ORDER_S, Residency

NAMES = ("a", "b", "c", "d")
LIMIT = 10


class Served(RuleBasedStateMachine):
    """A router with requests, and a host; orders and reports between them are under way until a rule delivers them."""

    @initialize(
        sizes=st.lists(st.integers(1, LIMIT), min_size=len(NAMES), max_size=len(NAMES)),
        keep_alive_s=st.sampled_from([0.0, 3.0, inf]),
    )
    def begin(self, sizes: list[int], keep_alive_s: float) -> None:
        self.sizes = dict(zip(NAMES, sizes, strict=True))
        self.residency = Residency(LIMIT, keep_alive_s)
        self.now_s = 1.0
        self.processes: dict[str, ProcessOf] = dict.fromkeys(NAMES, "none")
        self.answers: set[str] = set()
        self.orders: deque[tuple[str, str]] = deque()
        self.reports: deque[Models] = deque()
        self.waiting: list[str] = []
        self.open: list[str] = []
        self.report()
        self.deliver_report()

    # The router

    def route(self) -> None:
        """Plans, and sends the waiting requests on that may go."""
        plan = self.residency.plan(tuple(dict.fromkeys(self.waiting)), self.now_s)
        assert not plan.refused
        self.orders += [("stop", name) for name in plan.stop] + [("start", name) for name in plan.start]
        assert not {name for name in plan.stop if name in self.open}
        for name in [name for name in self.waiting if name in plan.ready & self.answers]:
            self.waiting.remove(name)
            self.open.append(name)
            self.residency.opened(name, self.now_s)

    @rule(name=st.sampled_from(NAMES))
    def arrive(self, name: str) -> None:
        self.waiting.append(name)
        self.route()
        self.route()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.route()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.close(self.open[data.draw(st.integers(0, len(self.open) - 1))])

    def close(self, name: str) -> None:
        self.open.remove(name)
        self.residency.closed(name, self.now_s)
        self.route()

    @rule(name=st.sampled_from(NAMES))
    def unload(self, name: str) -> None:
        self.residency.unload(name)
        self.route()

    @rule(name=st.sampled_from(NAMES), keep_alive_s=st.sampled_from([0.0, 3.0, inf]))
    def keep(self, name: str, keep_alive_s: float) -> None:
        self.residency.keep(name, keep_alive_s)
        self.route()

    @rule(seconds=st.floats(0.1, ORDER_S / 2))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.deliver_all()
        self.route()

    # The host

    def report(self) -> None:
        self.reports.append(
            Models(tuple(ModelReport(name, Description("f", self.sizes[name]), self.processes[name]) for name in NAMES))
        )

    @precondition(lambda self: self.orders)
    @rule()
    def obey(self) -> None:
        order, name = self.orders.popleft()
        if order == "start" and self.processes[name] == "none":
            self.processes[name] = "running"
        elif order == "stop" and self.processes[name] == "running":
            assert name not in self.open
            self.processes[name] = "stopping"
            self.answers.discard(name)
        self.report()

    @precondition(lambda self: self.reports)
    @rule()
    def deliver_report(self) -> None:
        self.residency.update(self.reports.popleft())
        self.route()

    @rule(name=st.sampled_from(NAMES))
    def advance(self, name: str) -> None:
        """A load or an unload ends."""
        if self.processes[name] == "running" and name not in self.answers:
            self.answers.add(name)
            self.residency.record_ready(name, self.now_s)
            self.route()
        elif self.processes[name] == "stopping":
            self.processes[name] = "none"
            self.report()

    @rule(name=st.sampled_from(NAMES))
    def crash(self, name: str) -> None:
        if self.processes[name] != "none":
            self.processes[name] = "none"
            self.answers.discard(name)
            self.report()
            for _ in range(self.open.count(name)):
                self.close(name)

    @rule()
    def lose_host(self) -> None:
        """The host dies with the orders that it has not read, and another one takes its place."""
        self.orders.clear()
        self.now_s += ORDER_S
        self.report()
        while self.reports:
            self.deliver_report()

    def deliver_all(self) -> None:
        while self.orders:
            self.obey()
        while self.reports:
            self.deliver_report()

    # The laws

    @invariant()
    def stays_below_the_limit(self) -> None:
        if hasattr(self, "processes"):
            assert sum(self.sizes[name] for name in NAMES if self.processes[name] != "none") <= LIMIT

    @rule(flood=st.sampled_from(NAMES))
    def every_waiting_request_is_served(self, flood: str) -> None:
        """If loads and requests end, overlapping requests for one model do not keep those for others waiting."""
        for _ in range(12 * len(NAMES)):
            before = list(self.open)
            self.arrive(flood)
            for name in before:
                self.close(name)
            self.now_s += 0.1
            self.deliver_all()
            for name in NAMES:
                self.advance(name)
            self.deliver_all()
        assert not {name for name in self.waiting if name != flood}


Served.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_random_operations = Served.TestCase
