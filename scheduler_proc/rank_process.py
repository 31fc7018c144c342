"""A rank of an engine other than its scheduler, which runs the same steps with its shard of the model, or its layers.

python -m scheduler_proc.rank_process --name rank1 --run-dir DIR
"""

from typing import TYPE_CHECKING

from messages.channels import Receiver
from messages.control.processes import worker_number
from messages.engine_names import RANK, engine_name, rank_of
from messages.ring.steps import Batch, JoinRanks, ToRank
from runtime.process import ProcessLink, run_process
from runtime.profiling import Part
from scheduler_proc.computing.torch_import import import_torch
from scheduler_proc.neighbours import find_neighbours
from scheduler_proc.process import make_observer, settle_memory, step_name
from scheduler_proc.ranks import find_kv_file

if TYPE_CHECKING:
    from scheduler_proc.computing.kv_cache.page_sums import PageSums
    from scheduler_proc.stepper import Runner, StepFuture


class RankLoop:
    """Runs the steps of its scheduler as they arrive. Results are dropped, as the scheduler has its own.

    `sums` are those of its KV cache, if that outlives the process.
    """

    def __init__(self, runner: "Runner", sums: "PageSums | None" = None):
        self._runner = runner
        self._sums = sums
        self._latest: StepFuture | None = None
        self._num_steps = 0

    def run(self, batch: Batch) -> None:
        """Runs a step or, if the runner can overlap, launches it and waits for the previous one."""
        launched = self._runner.launch(batch)
        self._num_steps += 1
        if self._runner.can_overlap:
            before, self._latest = self._latest, launched
            if before is not None:
                before.result()
        if self._sums is not None:
            self._sums.record(batch)

    def gauges(self) -> dict[str, float]:
        return {"steps": self._num_steps, **self._runner.memory_gauges()}


def serve(link: ProcessLink) -> None:
    """Runs the steps of its engine's scheduler until the launcher stops it. Raises `BootError`."""
    engine, rank = worker_number(link.name), rank_of(link.name)
    link.phase("importing torch")
    import_torch()
    # Imported late: they need torch.
    from scheduler_proc.computing.kv_cache.page_sums import PageSums
    from scheduler_proc.computing.load_runner import load_models

    receiver: Receiver[ToRank] = Receiver(link.run_dir.socket(link.name), ToRank)
    link.add_receiver(receiver)
    link.phase("waiting for its scheduler")
    while not any(isinstance(message, JoinRanks) for message in receiver.receive()):
        link.receive_control()
        if link.is_stopping:
            return
        link.wait()
    ranks_file = link.run_dir.ranks_file(engine_name(engine))
    weights_file = link.run_dir.weights_of(rank)
    neighbours = find_neighbours(link)
    number = engine + 1 - link.config.first_engine
    model = load_models(link.config, link.phase, number, weights_file, rank, ranks_file, neighbours)
    runner = model.make_runner(link.phase, find_kv_file(link))
    if neighbours is not None:
        neighbours.has_started = True
    memory = runner.page_memory
    loop = RankLoop(runner, None if memory is None else PageSums(memory, link.config.cache.block_size))
    link.profiler.make_observer = make_observer
    link.profiler.parts.append(Part(loop, "run", step_name))
    settle_memory()
    link.ready(runner.degraded, runner.placement)
    while not link.is_stopping:
        link.receive_control()
        message = next(receiver.receive(limit=1), None)
        if message is None:
            link.wait()
            message = next(receiver.receive(limit=1), None)
        link.beat(loop.gauges, is_busy=message is not None)
        if isinstance(message, Batch):
            loop.run(message)
        elif message is not None:
            raise SystemExit(f"{link.name} has missed a step of its scheduler: {message}")
    receiver.close()


def main() -> int:
    return run_process(RANK, serve)


if __name__ == "__main__":
    raise SystemExit(main())
