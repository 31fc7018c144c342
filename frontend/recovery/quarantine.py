"""Requests that may have killed the scheduler. They run one at a time; one that kills it again is refused."""

from collections.abc import Sequence

from frontend.links.processes import ProcessView
from frontend.requests.generation import Generation
from messages.engine_names import SCHEDULER

NUM_DEATHS_SUSPECT = 2
NUM_DEATHS_REFUSED = 3


class Quarantine:
    """Counts, per request, consecutive deaths of the scheduler during which it had a row and got no token since.

    A request that got a token since the last death starts again at one: its state at that time did not kill. Suspects
    are held back. The one that runs, together with requests that are not suspects, is either cleared by its first token
    or identified as the culprit.
    """

    def __init__(self, max_num_seqs: int):
        self._max_num_seqs = max_num_seqs
        self._num_deaths: dict[int, int] = {}
        self._num_ids: dict[int, int] = {}
        """Number of tokens that each request had at the latest death."""
        self._held: dict[int, Generation] = {}
        self._running: Generation | None = None

    def __len__(self) -> int:
        return len(self._held)

    @property
    def num_suspects(self) -> int:
        """The number of held suspects, plus the running one if it is not cleared."""
        return len(self._held) + self._is_one_running

    @property
    def _is_one_running(self) -> bool:
        running = self._running
        return running is not None and running.is_open and not running.has_progressed

    def record_death(
        self, open_requests: Sequence[Generation], elsewhere: Sequence[Generation] = ()
    ) -> list[Generation]:
        """Records that a scheduler died with `open_requests`, oldest first. Holds suspects, returns those to refuse.

        Rows are assigned in order of arrival, so only the first `max_num_seqs` can have had one. `elsewhere` are the
        open requests of other schedulers; their counts are kept.
        """
        sent = [generation for generation in open_requests if not self.is_held(generation)]
        others = {generation.uid for generation in elsewhere}
        previous, self._num_deaths = self._num_deaths, dict.fromkeys(self._held, NUM_DEATHS_SUSPECT)
        self._num_deaths |= {uid: num_deaths for uid, num_deaths in previous.items() if uid in others}
        num_ids = self._num_ids
        self._num_ids = {uid: num for uid, num in num_ids.items() if uid in others}
        self._num_ids |= {entry.uid: len(entry.output_ids) for entry in open_requests}
        for rank, generation in enumerate(sent):
            has_progressed = len(generation.output_ids) > num_ids.get(generation.uid, 0)
            num_deaths = 0 if has_progressed else previous.get(generation.uid, 0)
            if rank < self._max_num_seqs or generation is self._running:
                num_deaths += 1
            self._num_deaths[generation.uid] = num_deaths
            if num_deaths == NUM_DEATHS_SUSPECT:
                self._held[generation.uid] = generation
        if self._running is None or self._running.uid not in others:
            self._running = None
        return [generation for generation in sent if self._num_deaths[generation.uid] >= NUM_DEATHS_REFUSED]

    def is_held(self, generation: Generation) -> bool:
        return generation.uid in self._held

    def next_suspect(self) -> Generation | None:
        """Releases and returns the suspect to run now; `None` if there is none, or while another one is not cleared."""
        if self._is_one_running:
            return None
        self._running = None
        while self._held and self._running is None:
            suspect = self._held.pop(next(iter(self._held)))
            self._running = suspect if suspect.is_open else None
        return self._running


def may_release_suspect(processes: ProcessView, own_block: int) -> bool:
    """True if the frontend with this block of uids is the first of those that have suspects.

    False for every frontend until all have processed the latest death of a scheduler.
    """
    schedulers = processes.serving_of(SCHEDULER)
    for other in processes.other_fronts(own_block):
        report = other.frontend
        if not report or not schedulers or report.schedulers_seen != schedulers:
            return False
        if report.num_suspects and other.uid_block < own_block:
            return False
    return True
