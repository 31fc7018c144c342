"""The protocol of what requests need besides pages, a row and tokens of a step."""

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from messages.ring.encodings import FromEncoder
from messages.ring.requests import FramesLost, UserMsg
from messages.ring.timeline import WaitsFor
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.page_observer import PageObserver
from scheduler_proc.deciding.pages.running_request import Chunk, Req
from scheduler_proc.deciding.requests import PendingReq
from scheduler_proc.deciding.sampling.endings import Ending

NO_COLUMNS: Mapping[str, bytes] = {}


class StepRows(Protocol):
    """The decode rows of a step, as `rows/decode_rows.py` has them."""

    reqs: list[Req]
    context_lens: "array[int]"
    table_width: int


class Resource(PageObserver):
    """Something that requests need. A subclass overrides what it needs; by default nothing is ever lacking.

    It keeps what it knows of a request by uid, from `on_opened` to `on_closed`, or to `on_finished`. `name` is the
    reason that `/requests` shows for a request that waits for it.
    """

    name: WaitsFor = "priority"

    @property
    def is_loading(self) -> bool:
        """True if a request waits for something that arrives without a step."""
        return False

    def refuse(self, message: UserMsg) -> None:
        """Raises `RequestError` for a request whose needs it can never meet."""

    def prepare(self, pending: PendingReq) -> bool:
        """Prepares for a new request. Returns True if it cannot even end before something has arrived."""
        return False

    def receive(self, message: FromEncoder | FramesLost) -> None:
        """Takes a message of another process, or that one was lost."""

    def collect(self, waiting: Iterable[PendingReq], cache: BlockAllocator) -> Sequence[tuple[PendingReq, Ending]]:
        """Takes what has arrived since the last call. Returns the waiting requests that end, and how."""
        return ()

    def admissible(self, waiting: Iterable[PendingReq]) -> Iterable[PendingReq]:
        """Yields the requests of the queue that may get a row; the others let them pass."""
        return waiting

    def find_wait(self, pending: PendingReq) -> WaitsFor | None:
        """Returns what a request lacks that is not admissible, `None` if it is."""
        return None

    def num_lacking(self, req: Req, prefilling: Sequence[Req], num_active: int, max_num_tokens: int) -> int:
        """Returns how much an opened request lacks; at most 0 if it can be admitted.

        `prefilling` are the rows whose prompts are not computed yet, in steps of at most `max_num_tokens`; `num_active`
        is the number of all rows.
        """
        return 0

    def find_delay(self, req: Req, chunks: Iterable[Chunk], cache: BlockAllocator) -> int | None:
        """Returns the request for which a prompt must wait before its next chunk, which may be itself.

        `chunks` are those of this step so far, and of those in flight.
        """
        return None

    def find_whole(self, req: Req, position: int) -> range | None:
        """Returns the tokens that one step must compute together, if a chunk that ends at `position` divides them."""
        return None

    def columns(self, rows: StepRows, chunks: Sequence[Chunk]) -> Mapping[str, bytes]:
        """Returns the columns of `Batch` that a step needs. Called once for each step, in their order."""
        return NO_COLUMNS

    def may_plan_behind(self) -> bool:
        """True if a step may be planned behind those in flight."""
        return True

    def commit(self, runs: Callable[[Req], bool], unfed: Collection[Req]) -> Iterable[Req]:
        """Applies the first planned step after its results; returns the rows that must be computed again.

        `runs` is true for requests that still run. `unfed` are the decode rows that got no token.
        """
        return ()

    def forget(self) -> None:
        """Undoes the latest planned step."""

    def suspect(self, runs: Callable[[Req], bool]) -> Iterable[Req]:
        """Returns the rows to be computed again if the planned steps have failed."""
        return ()

    def record_prefill(self, num_tokens: int, seconds: float) -> None:
        """Records the time of a step with prompts."""
