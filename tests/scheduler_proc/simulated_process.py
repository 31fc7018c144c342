"""The scheduler's real process around a simulated runner: `python -m tests.scheduler_proc.simulated_process`.

The last id of the vocabulary is never sampled; a step that holds it raises.
"""

from messages.config.server import Config
from messages.errors import BootError
from runtime.process import run_process
from scheduler_proc.process import Report, serve
from tests.scheduler_proc.simulated_runner import SimulatedRunner


def load_simulated_runner(config: Config, report: Report, engine: int) -> SimulatedRunner:
    report("simulating", 0.5)
    if (config.cache.num_pages or 40) * config.cache.block_size < config.facts.max_model_len:
        raise BootError("there is no room for a simulated model")
    last_id = config.facts.vocab_size - 1
    runner = SimulatedRunner(config.cache.num_pages or 40, config.cache.block_size, last_id)
    runner.poison = {last_id}
    return runner


if __name__ == "__main__":
    raise SystemExit(run_process("scheduler_proc", lambda link: serve(link, lambda _: load_simulated_runner)))
