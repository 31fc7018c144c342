"""Which of several frontends may run its suspects now: one at a time, according to their beats.

Only one suspect (`quarantine.py`) may run in the whole server; otherwise an innocent request could be blamed.
"""

from frontend.links.processes import ProcessView
from messages.engines import SCHEDULER


def may_release_suspect(processes: ProcessView, own_block: int) -> bool:
    """True if the frontend with this block of uids is the first of those that have suspects.

    False for every frontend until all have processed the latest death of a scheduler.
    """
    schedulers = processes.serving_of(SCHEDULER)
    for other in processes.other_fronts(own_block):
        report = other.frontend
        if not report or not schedulers or report.schedulers_seen != schedulers:
            return False
        if report.num_suspects and other.uid_block < own_block:
            return False
    return True
