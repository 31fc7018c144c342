"""When the launcher's loop turns by itself for a process that is about to end."""

from typing import Any

from messages.config.server import RunConfig
from supervisor.child import END_LOOK_S, Child, Command
from supervisor.console import Console
from supervisor.lifecycle import Lifecycle


class Group(list[Child]):
    """Processes of which nothing else is due."""

    def table_due_in_s(self) -> float:
        return float("inf")


def test_the_end_of_a_process_is_looked_for_from_the_end_of_its_output_on():
    """A killed process closes its output first. No event reports its end, so without polling that takes a second."""
    child = Child(Command("scheduler", ()))
    group: Any = Group([child])
    lifecycle = Lifecycle(RunConfig(), group, Console(), lambda *_: None)
    for pid, is_silent, due_in_s in ((7, False, float("inf")), (7, True, END_LOOK_S), (0, True, float("inf"))):
        child.pid, child.is_silent = pid, is_silent
        assert lifecycle.due_in_s() == due_in_s
