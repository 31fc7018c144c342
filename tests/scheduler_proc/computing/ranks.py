"""The ranks of an engine as threads of this process; the first is driven as a runner is that has no others."""

import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from messages.ring.steps import Batch
from scheduler_proc.computing.kv_cache.page_sums import PageSums
from scheduler_proc.computing.load_runner import load_models
from scheduler_proc.computing.runner import Runner
from scheduler_proc.rank_process import RankLoop
from tests.checkpoints import make_config

TIMEOUT_S = 60.0
NO_FILES: Mapping[int, Path] = MappingProxyType({})


def no_report(text: str, fraction: float | None) -> None:
    pass


@contextmanager
def ranks_of(
    path: Path,
    num_ranks: int,
    ranks_file: Path,
    num_stages: int = 1,
    kv_files: Mapping[int, Path] = NO_FILES,
    **flags: Any,
) -> Iterator[list[Runner]]:
    """Loads the checkpoint on `num_ranks` ranks in each stage, which all run the steps of the first rank.

    `kv_files` are the files in memory of their KV caches, if these outlive them. Raises what any rank raises.
    """
    parallel = {"tensor_parallel": num_ranks, "pipeline_parallel": num_stages}
    config = make_config(path, **parallel, boot_timeout_s=TIMEOUT_S, **flags)
    num_ranks *= num_stages
    runners: dict[int, Runner] = {}
    errors: list[BaseException] = []
    steps: list[queue.SimpleQueue[Batch | None]] = [queue.SimpleQueue() for _ in range(num_ranks)]
    have_loaded = threading.Barrier(num_ranks + 1, timeout=TIMEOUT_S)

    def work(rank: int) -> None:
        try:
            model = load_models(config, no_report, rank=rank, ranks_file=ranks_file)
            runners[rank] = model.make_runner(no_report, kv_files.get(rank), publish if rank == 0 else None)
            have_loaded.wait()
            memory = runners[rank].page_memory
            loop = RankLoop(runners[rank], None if memory is None else PageSums(memory, config.cache.block_size))
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
