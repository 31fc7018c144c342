"""Whose suspects may run now, where several frontends live: one frontend's at a time, by what their beats say.

A suspect (`quarantine.py`) must run beside no other one in the whole server, or an innocent one is blamed.
"""

from frontend.links.processes import ProcessView

SUSPECTS, SCHEDULER_SEEN = "suspects", "scheduler_seen"
"""Gauges of a frontend: its suspects, and the scheduler's incarnation up to which it has counted deaths.

Suspects come with a death only, so the first says all for as long as the second is the scheduler of now.
"""


def may_release_suspect(processes: ProcessView, own_block: int) -> bool:
    """Tells whether the frontend with this block of uids comes first among those that have suspects.

    It is nobody's turn until all have dealt with the latest death of the scheduler.
    """
    scheduler = processes.serving().get("scheduler")
    for other in processes.other_fronts(own_block):
        if other.gauges.get(SCHEDULER_SEEN) != scheduler:
            return False
        if other.uid_block < own_block and other.gauges.get(SUSPECTS):
            return False
    return True
