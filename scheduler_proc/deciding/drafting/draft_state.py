"""The state of speculation for one request."""

from array import array

from messages.columns import INT32
from scheduler_proc.deciding.drafting.continuations import Continuation
from scheduler_proc.deciding.drafting.draft_lengths import FORCED, AcceptanceRate
from scheduler_proc.deciding.drafting.ngrams import NgramMatch

NO_IDS: "array[int]" = array(INT32)


class DraftState:
    """What drafters know of a request. It outlives a preemption, except for the draft model's K and V.

    `rate` is the acceptance rate of the draft model's tokens, `forced_rate` that of tokens forced by the grammar.
    `match` is an earlier occurrence of the request's last tokens, `continuation` what followed them in other requests.
    Neither is searched while the request has fewer than `idle_until` tokens.

    The draft model has K and V of the first `num_computed` tokens, then those of `unverified_ids`, some of which may
    have been rejected since. Only `draft_model.py` changes these two.
    """

    __slots__ = ("continuation", "forced_rate", "idle_until", "match", "num_computed", "rate", "unverified_ids")

    def __init__(self) -> None:
        self.rate = AcceptanceRate()
        self.forced_rate = AcceptanceRate(FORCED)
        self.match: NgramMatch | None = None
        self.continuation: Continuation | None = None
        self.idle_until = 0
        self.num_computed = 0
        self.unverified_ids = NO_IDS
