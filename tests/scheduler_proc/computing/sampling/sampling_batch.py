"""A step for tests of the sampler: no model has computed anything for it."""

from collections.abc import Sequence

from torch import Tensor

from messages.columns import pack_float32, pack_int32, pack_int64
from messages.ring.requests import SamplingParams
from messages.ring.steps import Batch
from scheduler_proc.computing.backends.cpu.forward_passes import copy_columns
from scheduler_proc.computing.sampling.plan import plan_sampling
from scheduler_proc.computing.sampling.sampler import choose_tokens
from tests.scheduler_proc.plain_steps import plain_step


def choose(logits_SV: Tensor, batch: Batch) -> Tensor:
    """Returns the next token of each row of the step."""
    plan = plan_sampling(batch, logits_SV.shape[1])
    return choose_tokens(logits_SV, plan, copy_columns(plan.columns))


def make_batch(params: Sequence[SamplingParams], positions: Sequence[int]) -> Batch:
    """Returns a plan of which only the sampling columns count, a row for each of `params`."""
    return plain_step(
        len(params),
        temperatures=pack_float32(0.0 if p.is_greedy else p.temperature for p in params),
        top_ps=pack_float32(p.top_p for p in params),
        top_ks=pack_int32(p.top_k for p in params),
        min_ps=pack_float32(p.min_p for p in params),
        top_n_sigmas=pack_float32(p.top_n_sigma for p in params),
        typical_ps=pack_float32(p.typical_p for p in params),
        xtc_probabilities=pack_float32(p.xtc_probability for p in params),
        xtc_thresholds=pack_float32(p.xtc_threshold for p in params),
        seeds=pack_int64(p.seed for p in params),
        sample_positions=pack_int64(positions),
    )
