"""Whose suspects may run now, where several frontends live: one frontend's at a time, by what their beats say.

A suspect (`quarantine.py`) must run beside no other one in the whole server, or an innocent one is blamed.
"""

from frontend.links.processes import ProcessView


def may_release_suspect(processes: ProcessView, own_block: int) -> bool:
    """Tells whether the frontend with this block of uids comes first among those that have suspects.

    It is nobody's turn until all have dealt with the latest death of the scheduler.
    """
    scheduler = processes.serving().get("scheduler")
    for other in processes.other_fronts(own_block):
        report = other.frontend
        if (report and report.scheduler_seen) != scheduler:
            return False
        if report and report.num_suspects and other.uid_block < own_block:
            return False
    return True
