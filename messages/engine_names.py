"""The names of an engine's processes.

An engine (`--data-parallel`) is a scheduler, its rank 0, together with its other ranks (`--tensor-parallel`,
`--pipeline-parallel`), which run the same steps.
"""

from messages.control.processes import kind_of, place_of, worker_name

SCHEDULER, RANK = "scheduler", "rank"


def engine_name(engine: int) -> str:
    """Returns the name of the process: `scheduler`, then `scheduler-2` …"""
    return worker_name(SCHEDULER, engine)


def rank_name(rank: int, engine: int = 1) -> str:
    """Returns the name of a rank other than the scheduler: `rank1`, or `rank1-2` in the second engine."""
    return worker_name(f"{RANK}{rank}", engine)


def hops_of(rank: int, engine: int = 1) -> str:
    """Returns the name of the socket at which a rank, also the scheduler, receives from the rank before it."""
    return f"{rank_name(rank, engine)}.hops"


def rank_of(name: str) -> int:
    """`rank1-2` → 1; 0 for a scheduler."""
    return int(place_of(name).partition("-")[0].removeprefix(RANK)) if kind_of(name) == RANK else 0
