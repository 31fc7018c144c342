"""The ranks of an engine as threads of this process; the first is driven as a runner is that has no others."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from messages.ring.steps import Batch
from scheduler_proc.computing.load_runner import load_models
from scheduler_proc.computing.runner import Runner
from scheduler_proc.rank_process import RankLoop
from tests.checkpoints import make_config

TIMEOUT_S = 60.0


def no_report(text: str, fraction: float | None) -> None:
    pass


sent_sizes: list[int] = []
"""The bytes of the messages that ranks in rings have sent."""


class QueueNeighbours(NamedTuple):
    """The neighbours of a rank that is a thread of this process."""

    inbox: "queue.SimpleQueue[bytes]"
    outbox: "queue.SimpleQueue[bytes]"

    def send(self, data: memoryview) -> None:
        sent_sizes.append(len(data))
        self.outbox.put(bytes(data))

    def receive(self) -> bytes:
        return self.inbox.get(timeout=TIMEOUT_S)


@contextmanager
def ranks_of(
    path: Path, num_ranks: int, ranks_file: Path, num_stages: int = 1, *, num_remote_stages: int = 0, **flags: Any
) -> Iterator[list[Runner]]:
    """Loads the checkpoint on `num_ranks` ranks in each stage, which all run the steps of the first rank.

    With remote stages, ranks send in a ring, as if they were on other machines. Raises what any rank raises.
    """
    parallel = {"tensor_parallel": num_ranks, "pipeline_parallel": num_stages}
    config = make_config(path, **parallel, boot_timeout_s=TIMEOUT_S, **flags)
    config = msgspec.structs.replace(config, num_remote_stages=num_remote_stages)
    num_ranks *= num_stages
    queues: list[queue.SimpleQueue[bytes]] = [queue.SimpleQueue() for _ in range(num_ranks)]
    runners: dict[int, Runner] = {}
    errors: list[BaseException] = []
    steps: list[queue.SimpleQueue[Batch | None]] = [queue.SimpleQueue() for _ in range(num_ranks)]
    have_loaded = threading.Barrier(num_ranks + 1, timeout=TIMEOUT_S)

    def work(rank: int) -> None:
        try:
            neighbours = QueueNeighbours(queues[rank], queues[(rank + 1) % num_ranks]) if num_remote_stages else None
            here = msgspec.structs.replace(config, joined_rank=rank if rank <= num_remote_stages else 0)
            model = load_models(here, no_report, rank=rank, ranks_file=ranks_file, neighbours=neighbours)
            runners[rank] = model.make_runner(no_report, publish=publish if rank == 0 else None)
            have_loaded.wait()
            loop = RankLoop(runners[rank])
            while (batch := steps[rank].get()) is not None:
                loop.run(batch)
        except BaseException as error:
            errors.append(error)
            have_loaded.abort()

    def publish(batch: Batch | None) -> None:
        for own in steps[1:]:
            own.put(batch)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    try:
        have_loaded.wait()
        yield [runners[rank] for rank in range(num_ranks)]
    except threading.BrokenBarrierError:
        pass
    finally:
        publish(None)
        steps[0].put(None)
        for thread in threads:
            thread.join(TIMEOUT_S)
    if errors:
        raise errors[0]
