"""The same as `simulated_process`, where rows get between no and five tokens a step."""

import random
from typing import Any

from messages.config.server import Config
from runtime.process import run_process
from scheduler_proc import deciding_half
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.policy import Budget
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.process import Report, serve
from tests.scheduler_proc.simulated_drafter import SimulatedDrafter
from tests.scheduler_proc.simulated_process import load_simulated_runner
from tests.scheduler_proc.simulated_runner import SimulatedRunner


class DraftingScheduler(Scheduler):
    """A scheduler with a drafter of its own."""

    def __init__(
        self, cache: BlockAllocator, limits: Limits, budget: Budget, drafter: None, *more: Any, **named: Any
    ) -> None:
        simulated = SimulatedDrafter(random.Random(2), limits.vocab_size - 1)
        super().__init__(cache, limits, budget, simulated, *more, **named)


def load_drafting_runner(config: Config, report: Report, engine: int) -> SimulatedRunner:
    runner = load_simulated_runner(config, report, engine)
    runner.withholds = random.Random(1)
    return runner


if __name__ == "__main__":
    deciding_half.Scheduler = DraftingScheduler
    raise SystemExit(run_process("scheduler_proc", lambda link: serve(link, lambda _: load_drafting_runner)))
