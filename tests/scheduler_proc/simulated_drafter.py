"""A drafter that knows what the simulated runner will sample, and sometimes proposes other tokens."""

import random
from array import array
from collections.abc import Sequence

from scheduler_proc.deciding.drafting.draft_lengths import DraftLengths
from scheduler_proc.deciding.drafting.draft_model import DraftModel
from scheduler_proc.deciding.drafting.draft_planner import DraftPlanner
from scheduler_proc.deciding.drafting.draft_state import AcceptanceRate
from scheduler_proc.deciding.drafting.drafts import Draft, Drafter
from scheduler_proc.deciding.drafting.step_cost import StepCost
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.requests import PendingReq
from tests.scheduler_proc.simulated_runner import expected_output

NEVER = 1 << 20


class AllDrafts(DraftLengths):
    """Gives each row all draft tokens that are proposed."""

    def choose(self, chances: Sequence[Sequence[float]], max_tokens: int) -> list[int]:
        return [len(own) for own in chances]

    def choose_all(self, rates: Sequence[AcceptanceRate], most: Sequence[int], drafting: StepCost) -> list[int]:
        return list(most)


def plan_all_drafts(cache: BlockAllocator, drafter: Drafter | DraftModel) -> DraftPlanner:
    return DraftPlanner(cache, drafter, AllDrafts())


class SimulatedDrafter:
    """Proposes at most `max_drafts` tokens, each of them wrong with probability `error_rate`."""

    def __init__(self, chance: random.Random, vocab_size: int, max_drafts: int = 4, error_rate: float = 0.2):
        self.num_proposed = 0
        self._chance = chance
        self._vocab_size = vocab_size
        self._max_drafts = max_drafts
        self._error_rate = error_rate
        self._outputs: dict[bytes, list[int]] = {}

    def propose(self, req: Req, max_tokens: int) -> Draft:
        num_drafts = min(max_tokens, self._chance.randint(0, self._max_drafts))
        right = self._output(req.pending)[req.pending.num_output_tokens :][:num_drafts]
        drafts = [
            self._chance.randrange(self._vocab_size) if self._chance.random() < self._error_rate else token_id
            for token_id in right
        ]
        self.num_proposed += len(drafts)
        return Draft(array("i", drafts), [1.0] * len(drafts))

    def _output(self, pending: PendingReq) -> list[int]:
        """Returns the whole output, and what would come after a token that ends it."""
        prompt, params = pending.token_ids[: pending.num_prompt_tokens], pending.sampling_params
        key = repr((prompt, params)).encode()
        if key not in self._outputs:
            self._outputs[key] = expected_output(prompt, params, self._vocab_size, NEVER)
        return self._outputs[key]
