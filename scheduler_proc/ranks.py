"""How the scheduler, rank 0 of its engine, has the other ranks load the model and run its steps."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from messages.channels import Sender
from messages.config.server import Config
from messages.engines import rank_name
from messages.ring.steps import JoinRanks, ToRank
from runtime.process import ProcessLink

if TYPE_CHECKING:
    from scheduler_proc.computing.load_runner import LoadedModel
    from scheduler_proc.computing.runner import Runner

log = logging.getLogger("sluice.ranks")


def load_as_leader(
    link: ProcessLink,
    load_model: "Callable[..., LoadedModel]",
    config: Config,
    report: Callable[[str, float | None], None],
    engine: int,
) -> "Runner":
    """Has the other ranks load the model with this one; returns a runner whose steps they run too.

    It uses none of the files in memory that outlive a scheduler: each rank has its own part of weights and KV cache.
    """
    log.info("--tensor-parallel: nothing is left to the next engine, as with --no-share-weights and --no-keep-kv-cache")
    ranks_file = link.run_dir.ranks_file(link.name)
    ranks_file.unlink(missing_ok=True)  # that of the engine before this one
    senders: list[Sender[ToRank]] = [
        link.open_sender(rank_name(rank, engine)) for rank in range(1, config.run.tensor_parallel)
    ]

    def send(message: ToRank) -> None:
        for sender in senders:
            sender.send(message)

    send(JoinRanks())
    return load_model(config, report, engine, ranks_file=ranks_file).make_runner(report, publish=send)
