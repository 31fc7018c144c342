from messages.control.processes import Hello
from messages.schema import SCHEMA_VERSION
from supervisor.admission import find_reason_to_refuse
from supervisor.child import Child, Command


def make(pid: int, is_external: bool = True, is_welcome: bool = False) -> dict[str, Child]:
    child = Child(Command("scheduler", (), is_external))
    child.pid, child.is_welcome = pid, is_welcome
    return {"scheduler": child}


def reason(children: dict[str, Child], name: str = "scheduler", version: int = SCHEMA_VERSION) -> str | None:
    return find_reason_to_refuse(children.get(name), list(children), Hello(name, 7, version))


def test_a_process_that_was_started_by_the_launcher_or_that_is_waited_for_belongs_to_the_run():
    assert reason(make(pid=7)) is None
    assert reason(make(pid=7, is_external=False)) is None
    assert reason(make(pid=0)) is None


def test_every_other_process_receives_why_not():
    assert "it speaks version 0 of the messages" in str(reason(make(pid=7), version=0))
    assert "no process of that name, only scheduler" in str(reason(make(pid=7), name="cook"))
    assert "a scheduler runs already (pid 8)" in str(reason(make(pid=8)))
    assert "give the launcher --external scheduler" in str(reason(make(pid=0, is_external=False)))


def test_a_successor_is_not_taken_before_the_end_of_its_predecessor_is_dealt_with():
    assert "has ended only just now" in str(reason(make(pid=0, is_welcome=True)))
