"""What the autoscaler does with a decision, and when it takes no sample: scripted statuses, a played clock."""

from types import SimpleNamespace
from typing import Any

import pytest

from extras.remote import autoscaler
from extras.remote.autoscaler import Autoscaler
from extras.remote.config import RemoteConfig
from messages.config.server import Config, ModelFacts
from messages.control.admin import Answer, Ask, Done, Failed, ScaleProcess
from messages.control.processes import ProcessStatus
from supervisor.child import Child, Command
from supervisor.console import Console
from supervisor.status_board import StatusBoard

GAUGES = {"waiting_tokens": 500.0, "running": 4.0, "rows_all": 4.0, "pages_in_use": 1.0, "pages_all": 10.0}


class Group:
    """The engines as the autoscaler sees them."""

    has_started, is_draining, is_stopping = True, False, False

    def __init__(self) -> None:
        self.board = StatusBoard(["scheduler"], 60.0)
        self.children = [Child(Command("scheduler", ()))]
        self.fields: dict[str, Any] = {}

    def __iter__(self) -> Any:
        return iter(self.children)

    def status(self, child: Child) -> ProcessStatus:
        return ProcessStatus(child.name, **{"state": "ready", "gauges": GAUGES, **self.fields})


class Play:
    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now_s, self.asked, self.replies = 0.0, list[Ask](), list[Any]()
        self.group = Group()
        monkeypatch.setattr(autoscaler.time, "monotonic", lambda: self.now_s)
        remote = RemoteConfig(max_engines=3, scaling=("up_tokens=100", "up_s=2"))
        group: Any = self.group
        self.lines = list[str]()
        console: Any = SimpleNamespace(show=lambda text, level="info": self.lines.append(text))
        self.autoscaler = Autoscaler(remote.put_into(Config(facts=ModelFacts())), group, self._begin, console)

    def _begin(self, ask: Ask, reply: Any) -> None:
        self.asked.append(ask)
        self.replies.append(reply)

    def turn(self, seconds: int) -> None:
        for _ in range(seconds * 4):
            self.autoscaler.look()
            self.now_s += 0.25


def test_it_gives_one_command_and_waits_for_its_end(monkeypatch: pytest.MonkeyPatch):
    play = Play(monkeypatch)
    play.turn(10)
    assert [ask.command for ask in play.asked] == [ScaleProcess("scheduler", 2)]
    assert play.lines == ["engines: 1 -> 2: 500 prompt tokens wait, for 2 s more than 100 for each of 1"]
    scaling = play.group.board.scaling
    assert scaling is not None
    assert (scaling.target, scaling.num_decisions) == (2, {"waiting": 1})
    play.replies[0](Answer(0, Done("")))
    play.group.children.append(Child(Command("scheduler-2", ())))
    play.turn(10)
    assert [ask.command for ask in play.asked[1:]] == [ScaleProcess("scheduler", 3)]


def test_after_a_failure_it_waits_a_minute(monkeypatch: pytest.MonkeyPatch):
    play = Play(monkeypatch)
    play.turn(5)
    play.replies[0](Answer(0, Failed("failed", "too few cores")))
    scaling = play.group.board.scaling
    assert scaling is not None
    assert scaling.target == 1
    assert scaling.text.endswith("that has failed: too few cores")
    play.turn(55)
    assert len(play.asked) == 1
    play.turn(10)
    assert len(play.asked) == 2


@pytest.mark.parametrize(
    "fields", [{"state": "starting"}, {"state": "restarting"}, {"is_leaving": True}, {"gauges": {}}]
)
def test_it_decides_nothing_while_an_engine_is_away(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]):
    play = Play(monkeypatch)
    play.group.fields = fields
    play.turn(20)
    play.group.fields = {}
    play.turn(2)
    assert not play.asked, "the time counts from when all serve"
    play.turn(3)
    assert play.asked


def test_what_an_operator_has_set_is_shown(monkeypatch: pytest.MonkeyPatch):
    play = Play(monkeypatch)
    play.group.children.append(Child(Command("scheduler-2", ())))
    play.turn(1)
    scaling = play.group.board.scaling
    assert scaling is not None
    assert (scaling.target, scaling.text) == (2, "as an operator has set it")
    assert not play.asked


def test_it_does_nothing_where_the_number_is_fixed(monkeypatch: pytest.MonkeyPatch):
    group: Any = Group()
    fixed = Autoscaler(Config(facts=ModelFacts()), group, lambda *_: pytest.fail("no command"), Console())
    monkeypatch.setattr(autoscaler.time, "monotonic", lambda: 1e6)
    fixed.look()
    assert group.board.scaling is None
