"""The `Server-Timing` header: the time per stage of a request, as browsers and HTTP clients show it."""

import time
from collections.abc import Sequence

from frontend.requests.generation import Generation
from frontend.requests.timelines import sum_stages

SERVER_TIMING_HEADER = b"server-timing"


def server_timing(choices: Sequence[Generation]) -> bytes:
    """Returns the header's value: the stages of the choice that ended last, in milliseconds, and their sum.

    Call it when all choices have ended, just before the reply is written: writing is not included.
    """
    now_ns = time.monotonic_ns()
    timeline = max((generation.timeline for generation in choices), key=lambda each: each.stage_begin_ns)
    entries = [f"{stage};dur={ms:.3f}" for stage, ms in sum_stages(timeline.spans(now_ns)).items()]
    total_ms = (now_ns - timeline.received_ns) / 1e6
    return ", ".join([*entries, f"total;dur={total_ms:.3f}"]).encode()
