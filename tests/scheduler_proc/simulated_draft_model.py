"""A simulated draft model on pages with the numbers of the bench's."""

from messages.ring.steps import Batch, ForwardOutput
from scheduler_proc.deciding.drafting.draft_lengths import DraftLengths
from scheduler_proc.deciding.drafting.draft_model import DraftLimits, DraftModel
from scheduler_proc.deciding.drafting.draft_planner import DraftPlanner
from scheduler_proc.deciding.rows.batch_columns import BatchBuilder
from scheduler_proc.deciding.scheduler import Scheduler
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench
from tests.scheduler_proc.simulated_drafter import AllDrafts
from tests.scheduler_proc.simulated_runner import SimulatedRunner

MAX_DRAFTS = 4


class SimulatedDraftModel(SimulatedRunner):
    """Samples as the bench's runner does; every `error_every`-th of its steps gives other tokens."""

    def __init__(self, bench: Bench, error_every: int = 0):
        super().__init__(bench.cache.num_pages, bench.cache.page_size, VOCAB_SIZE)
        self.num_fed = 0
        self._error_every = error_every

    def run(self, batch: Batch) -> ForwardOutput:
        output = super().run(batch)
        self.num_fed += batch.num_tokens
        if self._error_every and not len(self.batches) % self._error_every:
            wrong = bytes(byte ^ 1 if place % 4 == 0 else byte for place, byte in enumerate(output.next_tokens))
            output = ForwardOutput(output.step_id, wrong)
        return output


def add_draft_model(
    bench: Bench, error_every: int = 0, lengths: DraftLengths | None = None, **limits: int
) -> SimulatedDraftModel:
    """The bench's scheduler has a draft model from now on; `limits` are fields of `DraftLimits`."""
    runner, cache = SimulatedDraftModel(bench, error_every), bench.cache
    runner.vocab_size = limits.get("vocab_size", VOCAB_SIZE)
    fields = {
        "max_drafts": MAX_DRAFTS,
        "max_len": bench.limits.max_model_len,
        "vocab_size": VOCAB_SIZE,
        "model_vocab_size": VOCAB_SIZE,
    }
    builder = BatchBuilder(cache.num_pages, cache.page_size, bench.limits.max_model_len)
    model = DraftModel(builder, cache, DraftLimits(**(fields | limits)))
    bench.draft_runner = runner
    planner = DraftPlanner(cache, model, lengths or AllDrafts())
    bench.scheduler = Scheduler(cache, bench.limits, bench.budget, planner, bench.grammars)
    return runner
