"""A limit on rows with long outputs: at most `MAX_LONG` run at once, and others pass the next one."""

from collections.abc import Iterable, Sequence

from messages.ring.timeline import WaitsFor
from scheduler_proc.deciding.pages.resource import Resource
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.requests import PendingReq

LONG_TOKENS = 4096
MAX_LONG = 64


class LongOutputs(Resource):
    """Counts the rows that may have at least `LONG_TOKENS` output tokens."""

    name = "long_outputs"

    def __init__(self) -> None:
        self._rows: set[int] = set()

    def on_admitted(self, req: Req) -> None:
        if _is_long(req.pending):
            self._rows.add(req.uid)

    def on_closed(self, req: Req) -> None:
        self._rows.discard(req.uid)

    def admissible(self, waiting: Iterable[PendingReq]) -> Iterable[PendingReq]:
        return (pending for pending in waiting if len(self._rows) < MAX_LONG or not _is_long(pending))

    def find_wait(self, pending: PendingReq) -> WaitsFor | None:
        return "long_outputs" if _is_long(pending) and len(self._rows) >= MAX_LONG else None

    def num_lacking(self, req: Req, prefilling: Sequence[Req], num_active: int, max_num_tokens: int) -> int:
        return len(self._rows) + 1 - MAX_LONG if _is_long(req.pending) else 0

    def gauges(self) -> dict[str, float]:
        return {"rows_with_long_outputs": len(self._rows)}


def _is_long(pending: PendingReq) -> bool:
    return pending.sampling_params.max_tokens >= LONG_TOKENS
