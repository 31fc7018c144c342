"""Drains the server on command: the frontends accept no new requests, and the run ends after the last one."""

import time

from messages.control.admin import Done
from supervisor.admin.tasks import CommandFailedError, Task, until
from supervisor.process_group import ProcessGroup
from supervisor.shutdown import DRAIN_MARGIN_S, Shutdown


def drain_server(group: ProcessGroup, shutdown: Shutdown, timeout_s: float) -> Task:
    """Drains without blocking the loop; the shutdown is wanted when that is over, and then the run ends."""
    if group.is_draining or not (group.has_started and group.has_listening_frontend()):
        raise CommandFailedError("busy", "the server drains already" if group.is_draining else "the server is starting")
    shutdown.begin_drain(timeout_s)
    yield from until(group.has_drained, time.monotonic() + timeout_s + DRAIN_MARGIN_S)
    num = group.num_unfinished()
    shutdown.is_requested = True
    return Done(f"drained: {num} requests did not finish in time" if num else "drained: every request has ended")
