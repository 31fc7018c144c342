"""Whose suspects may run now, where several frontends live: one frontend's at a time, by what their beats say.

A suspect (`quarantine.py`) must run beside no other one in the whole server, or an innocent one is blamed.
"""

from frontend.links.processes import ProcessView
from messages.engines import SCHEDULER


def may_release_suspect(processes: ProcessView, own_block: int) -> bool:
    """Tells whether the frontend with this block of uids comes first among those that have suspects.

    It is nobody's turn until all have dealt with the latest death of a scheduler.
    """
    schedulers = processes.serving_of(SCHEDULER)
    for other in processes.other_fronts(own_block):
        report = other.frontend
        if not report or not schedulers or report.schedulers_seen != schedulers:
            return False
        if report.num_suspects and other.uid_block < own_block:
            return False
    return True
