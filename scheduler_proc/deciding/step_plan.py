"""A step that is being planned: its chunks, and the pages that they compute."""

from scheduler_proc.deciding.in_flight import StepInFlight
from scheduler_proc.deciding.requests import PendingReq
from scheduler_proc.deciding.rows.batch_columns import Chunk
from scheduler_proc.deciding.tasks.pooling import chunking_of

PageKey = tuple[int, bytes, bytes]


class StepPlan:
    """Nothing is preempted if it is planned behind a step in flight, `before`. `ends_in_flight` is how far that step
    computes each of its prompts, by uid.
    """

    def __init__(self, num_tokens_left: int, num_yielding_left: int, before: StepInFlight | None):
        self.num_tokens_left = num_tokens_left
        self.num_yielding_left = num_yielding_left
        """The part of `num_tokens_left` for requests that give way."""
        self.may_preempt = before is None
        self.chunks: list[Chunk] = []
        self.pages_in_work: dict[PageKey, int] = {}
        """The uid of the request that computes each page."""
        self.chunks_in_flight = [] if before is None else before.chunks_in_work()
        self.ends_in_flight = {chunk.req.uid: chunk.end for chunk in self.chunks_in_flight}

    def fits(self, pending: PendingReq) -> bool:
        """True unless its prompt must be computed in one step, and this one has too few tokens left."""
        is_whole = chunking_of(pending.sampling_params) == "none"
        return not is_whole or len(pending.token_ids) <= self.num_tokens_left
