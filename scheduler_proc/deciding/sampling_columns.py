"""How the rows that sample do so, as columns."""

from array import array

from messages.columns import FLOAT32, INT32, INT64
from scheduler_proc.deciding.requests import PendingReq


class SamplingColumns:
    """How each row samples: the columns of that name in `Batch`, and how many rows have use for those it may lack."""

    def __init__(self) -> None:
        self.temperatures: array[float] = array(FLOAT32)
        self.top_ps: array[float] = array(FLOAT32)
        self.top_ks: array[int] = array(INT32)
        self.min_ps: array[float] = array(FLOAT32)
        self.seeds: array[int] = array(INT64)
        self.num_logprobs: array[int] = array(INT32)
        self.num_with_logprobs = 0
        self.num_with_edits = 0

    def copy(self) -> "SamplingColumns":
        """Returns columns of the same rows that can be changed by themselves."""
        columns = SamplingColumns()
        columns.temperatures, columns.top_ps = self.temperatures[:], self.top_ps[:]
        columns.top_ks, columns.min_ps = self.top_ks[:], self.min_ps[:]
        columns.seeds, columns.num_logprobs = self.seeds[:], self.num_logprobs[:]
        columns.num_with_logprobs, columns.num_with_edits = self.num_with_logprobs, self.num_with_edits
        return columns

    def append(self, pending: PendingReq) -> None:
        params = pending.sampling_params
        self.temperatures.append(0.0 if params.is_greedy else params.temperature)
        self.top_ps.append(params.top_p)
        self.top_ks.append(params.top_k)
        self.min_ps.append(params.min_p)
        self.seeds.append(params.seed)
        self.num_logprobs.append(pending.num_logprobs)
        self.num_with_logprobs += pending.num_logprobs >= 0
        self.num_with_edits += pending.edits is not None

    def delete(self, row: int, pending: PendingReq) -> None:
        """Removes the row of this request."""
        del self.temperatures[row], self.top_ps[row], self.top_ks[row], self.min_ps[row], self.seeds[row]
        del self.num_logprobs[row]
        self.num_with_logprobs -= pending.num_logprobs >= 0
        self.num_with_edits -= pending.edits is not None

    def check(self, pendings: list[PendingReq]) -> None:
        """Asserts that the columns are those of these requests (of what `Batch` may lack)."""
        wanted = [pending.num_logprobs for pending in pendings]
        assert self.num_logprobs.tolist() == wanted, "a row has another's number of logprobs"
        assert self.num_with_logprobs == len(wanted) - wanted.count(-1), "rows with logprobs were miscounted"
        num_with_edits = sum(pending.edits is not None for pending in pendings)
        assert self.num_with_edits == num_with_edits, "rows with edits were miscounted"
