"""Makes the other ranks of an engine load the model and run the steps of its scheduler, rank 0."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from messages.channels import Sender
from messages.config.server import Config
from messages.control.processes import place_of
from messages.engine_names import rank_name
from messages.ring.steps import JoinRanks, ToRank
from runtime.process import ProcessLink
from scheduler_proc.neighbours import find_neighbours

if TYPE_CHECKING:
    from scheduler_proc.computing.loading.loaded_models import LoadedModels
    from scheduler_proc.computing.runner import Runner


def find_kv_file(link: ProcessLink) -> Path | None:
    """Returns the file in memory for the KV cache of this process, `None` if that ends with the process."""
    cache = link.config.cache
    keeps_cache = cache.keep_kv_cache and cache.enable_prefix_caching
    return link.run_dir.kv_file(place_of(link.name)) if keeps_cache else None


def load_as_leader(
    link: ProcessLink,
    load_models: "Callable[..., LoadedModels]",
    kv_file: Path | None,
    config: Config,
    report: Callable[[str, float | None], None],
    engine: int,
) -> "Runner":
    """Loads the model together with the other ranks; returns a runner whose steps they run, too.

    The weights and the KV cache of each rank outlive the engine in files in memory.
    """
    ranks_file = link.run_dir.ranks_file(link.name)
    ranks_file.unlink(missing_ok=True)  # the file of the previous engine
    senders: list[Sender[ToRank]] = [
        link.open_sender(rank_name(rank, engine)) for rank in range(1, config.run.num_ranks)
    ]

    def send(message: ToRank) -> None:
        for sender in senders:
            sender.send(message)

    send(JoinRanks())
    weights_file = link.run_dir.weights_of(rank=0)
    neighbours = find_neighbours(link)
    models = load_models(config, report, engine, weights_file, ranks_file=ranks_file, neighbours=neighbours)
    runner = models.make_runner(report, kv_file, send)
    if neighbours is not None:
        neighbours.has_started = True
    return runner
