"""The channels of a rank to the next one and from the previous one, if its engine has stages on other machines."""

from collections import deque

from messages.channels import Receiver, Sender, Waiter
from messages.control.processes import worker_number
from messages.engine_names import hops_of, rank_of
from messages.ring.requests import FramesLost
from runtime.process import ProcessLink

TURN_S = 1.0
"""The time between two looks for the end of the run, and between two reports that the start waits for others."""


class RankNeighbours:
    """Hidden states are frames that are numbered, and never recorded. A proxy takes those for another machine."""

    def __init__(self, link: ProcessLink):
        engine, rank = worker_number(link.name), rank_of(link.name)
        self._link = link
        self._receiver: Receiver[bytes | FramesLost] = Receiver(
            link.run_dir.socket(hops_of(rank, engine)), bytes | FramesLost
        )
        self._sender: Sender[memoryview] = link.make_sender(hops_of((rank + 1) % link.config.run.num_ranks, engine))
        self._waiter = Waiter()
        self._waiter.add_channel(self._receiver)
        self._arrived: deque[bytes] = deque()
        self.has_started = False
        """All ranks have loaded, so a wait is no progress of the start any more."""

    def send(self, data: memoryview) -> None:
        self._sender.send(data)

    def receive(self) -> bytes:
        """Ends the process with the run, or if a message is missing."""
        while not self._arrived:
            for message in self._receiver.receive():
                if isinstance(message, FramesLost):
                    raise SystemExit(f"{self._link.name} has missed what the previous stage sent: {message}")
                self._arrived.append(message)
            if not self._arrived:
                self._wait()
        return self._arrived.popleft()

    def _wait(self) -> None:
        if self._link.is_stopping:
            raise SystemExit(0)
        if not self.has_started:
            self._link.phase("synchronizing with the other stages")
        self._waiter.wait(TURN_S)


def find_neighbours(link: ProcessLink) -> RankNeighbours | None:
    """Returns the channels, `None` if all ranks are on this machine: they connect with each other."""
    return RankNeighbours(link) if link.config.num_remote_stages else None
