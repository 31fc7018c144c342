"""The same as `simulated_process`, with a runner that has each step planned while the one before it runs."""

from messages.config.server import Config
from runtime.process import run_process
from scheduler_proc.process import Report, serve
from tests.scheduler_proc.planned_ahead import AheadRunner
from tests.scheduler_proc.simulated_process import load_simulated_runner


def load_ahead_runner(config: Config, report: Report, engine: int) -> AheadRunner:
    return AheadRunner(load_simulated_runner(config, report, engine))


if __name__ == "__main__":
    raise SystemExit(run_process("scheduler_proc", lambda link: serve(link, lambda _: load_ahead_runner)))
