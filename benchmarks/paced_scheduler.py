"""The real scheduler process around a runner without a model, whose steps take a fixed time.

    python -m benchmarks.paced_scheduler --step-ms 10 --run-dir DIR

For a server started with `--external scheduler`: the cost of such a server is everything but the model.
"""

import sys
import time

from messages.columns import pack_int32
from messages.config.server import Config
from messages.ring.steps import Batch, ForwardOutput
from runtime.process import run_process
from scheduler_proc.process import Report, serve

NUM_PAGES = 20_000
MAX_NUM_BATCHED_TOKENS = 8192


class PacedRunner:
    """Gives every row a token, always another one, `step_s` seconds after the step has begun."""

    num_pages = NUM_PAGES
    max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
    can_overlap = can_plan_ahead = False
    num_stages = 1
    degraded = ""
    placement: dict[str, str] = {}  # noqa: RUF012 (never written)
    memory_gauges = dict[str, float]
    draft_runner = None
    page_memory = None
    page_store = None
    span_rows = None
    windows = states = None

    def __init__(self, step_s: float, vocab_size: int):
        self._step_s = step_s
        self._vocab_size = vocab_size

    def launch(self, batch: Batch) -> ForwardOutput:
        end_s = time.monotonic() + self._step_s
        num_rows = batch.num_sampled
        next_tokens = pack_int32((batch.step_id * 31 + row * 7) % self._vocab_size for row in range(num_rows))
        time.sleep(max(0.0, end_s - time.monotonic()))
        return ForwardOutput(batch.step_id, next_tokens)


def main() -> int:
    flag, step_ms = sys.argv[1:3]
    assert flag == "--step-ms", "usage: --step-ms N --run-dir DIR"
    del sys.argv[1:3]  # the rest is what every process takes

    def load_runner(config: Config, report: Report, engine: int) -> PacedRunner:
        report("pacing", None)
        return PacedRunner(float(step_ms) / 1000, config.facts.vocab_size)

    return run_process("scheduler_proc", lambda link: serve(link, lambda _: load_runner))


if __name__ == "__main__":
    raise SystemExit(main())
