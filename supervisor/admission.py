"""Decides which of the processes that say hello belong to the run."""

from collections.abc import Sequence

from messages.control.processes import Hello
from messages.schema import SCHEMA_VERSION
from supervisor.child import Child


def find_reason_to_refuse(child: Child | None, names: Sequence[str], hello: Hello) -> str | None:
    """Returns the reason to reject a process, `None` if it belongs to the run.

    `child` is the run's process of the name that it reports; `names` are all names of the run.
    """
    if hello.schema_version != SCHEMA_VERSION:
        return (
            f"it speaks version {hello.schema_version:x} of the messages and the launcher version {SCHEMA_VERSION:x}; "
            "start both from the same release"
        )
    if child is None:
        return f"this run has no process of that name, only {', '.join(names)}"
    name = child.name
    if child.pid == 0 and child.is_welcome:
        return f"the {name} before it has ended only just now; start it again"
    if child.pid not in (0, hello.pid):
        return f"a {name} runs already (pid {child.pid})"
    if child.pid == 0 and not child.is_external:
        return f"the launcher starts the {name} itself; to start it by hand, give the launcher --external {name}"
    return None
