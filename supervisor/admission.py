"""Which of the processes that say hello belong to the run."""

from collections.abc import Mapping

from messages.control import SCHEMA_VERSION, Hello
from supervisor.child import Child


def find_reason_to_refuse(children: Mapping[str, Child], name: str, hello: Hello) -> str | None:
    """Returns what speaks against the process that calls itself `name`, `None` where it belongs to the run."""
    child = children.get(name)
    if hello.schema_version != SCHEMA_VERSION:
        return (
            f"it speaks version {hello.schema_version} of the messages and the launcher version {SCHEMA_VERSION}; "
            "start both from the same release"
        )
    if child is None:
        return f"this run has no process of that name, only {', '.join(children)}"
    if child.pid == 0 and child.is_welcome:
        return f"the {name} before it has ended only just now; start it again"
    if child.pid not in (0, hello.pid):
        return f"a {name} runs already (pid {child.pid})"
    if child.pid == 0 and not child.is_external:
        return f"the launcher starts the {name} itself; to start it by hand, give the launcher --external {name}"
    return None
