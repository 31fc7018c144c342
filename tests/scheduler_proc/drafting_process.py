"""The same as `simulated_process`, where rows get between no and five tokens a step."""

import random

from messages.config.server import Config
from runtime.process import run_process
from scheduler_proc import deciding_half
from scheduler_proc.process import Report, serve
from tests.scheduler_proc.simulated_drafter import SimulatedDrafter, plan_all_drafts
from tests.scheduler_proc.simulated_process import load_simulated_runner
from tests.scheduler_proc.simulated_runner import SimulatedRunner


def load_drafting_runner(config: Config, report: Report, engine: int) -> SimulatedRunner:
    runner = load_simulated_runner(config, report, engine)
    runner.withholds = random.Random(1)
    drafter = SimulatedDrafter(random.Random(2), runner.vocab_size)
    deciding_half.make_draft_planner = lambda config, runner, cache: plan_all_drafts(cache, drafter)
    return runner


if __name__ == "__main__":
    raise SystemExit(run_process("scheduler_proc", lambda link: serve(link, lambda _: load_drafting_runner)))
