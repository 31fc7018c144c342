"""The rows in DECODE of the next step of a pipeline, whose stages compute as many steps at once.

A row is in one step at a time, as the next one needs its token. If one step had all rows, the stages would take turns.
So each step has its part of the rows: no more than one in `num_stages` of all, and no more than the free rows divided
by the steps that may still be launched. New rows, and rows of a group that has become too large, thereby join the
smallest group, and no record of groups is needed.
"""

from collections.abc import Collection, Sequence
from itertools import compress, islice

from scheduler_proc.deciding.in_flight import StepInFlight
from scheduler_proc.deciding.rows.decode_rows import DecodeRows


def next_group(
    decode: DecodeRows, in_flight: Sequence[StepInFlight], num_stages: int, starved: Collection[int]
) -> DecodeRows:
    """Returns the rows of `decode` for the next step behind fewer than `num_stages` steps in flight.

    `starved` are the uids of rows that no step has. The result is `decode` itself if it has all of its rows.
    """
    busy = {req for step in in_flight for req in step.decoding()}
    is_free = [req not in busy and req.uid not in starved for req in decode.reqs]
    num_left = num_stages - len(in_flight)
    num_rows = min(-(-sum(is_free) // num_left), -(-len(decode) // num_stages))
    if num_rows == len(decode):
        return decode
    chosen = set(islice(compress(range(len(decode)), is_free), num_rows))
    return decode.kept([row in chosen for row in range(len(decode))])
