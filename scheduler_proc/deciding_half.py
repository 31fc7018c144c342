"""Makes the deciding half for the runner that is to run its steps."""

import logging
import time
from collections.abc import Callable
from functools import partial

from messages.config.server import Config
from messages.ring.steps import Batch, ForwardOutput
from scheduler_proc.deciding.batch_columns import BatchBuilder
from scheduler_proc.deciding.drafting.draft_lengths import DraftLengths
from scheduler_proc.deciding.drafting.draft_model import DraftLimits, DraftModel
from scheduler_proc.deciding.drafting.drafts import NgramDrafter
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.page_journal import PageJournal
from scheduler_proc.deciding.pages.page_tiers import SAVE_S, PageTiers
from scheduler_proc.deciding.policy import Budget
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import GrammarSource, Scheduler
from scheduler_proc.stepper import Runner

TURN_STEPS, PART_OF_TURN = 256, 8
"""On a CPU, while clients have rows, every TURN_STEPS-th step has tokens of batches, for 1/PART_OF_TURN of all rows."""

log = logging.getLogger("sluice.scheduler")


def make_scheduler(
    config: Config, runner: Runner, grammars: GrammarSource | None = None, wake: Callable[[], None] | None = None
) -> Scheduler:
    """Returns a scheduler for the pages of `runner`, in which a request of full length has room.

    `wake` is called, in another thread, when pages have come from a lower tier.
    """
    facts, page_size = config.facts, config.cache.block_size
    budget = Budget(config.scheduling.max_num_seqs, runner.max_num_batched_tokens, *_yielding(config, runner))
    log.info(
        "%d pages of %d tokens; at most %d rows and %d tokens in a step",
        runner.num_pages,
        page_size,
        budget.max_num_seqs,
        budget.max_num_batched_tokens,
    )
    journal = None if runner.page_memory is None else PageJournal(runner.page_memory, runner.num_pages, page_size)
    store, is_sharing = runner.page_store, config.cache.enable_prefix_caching
    if store is not None and wake is not None:
        store.wake = wake
    tiers = None if store is None else PageTiers(store, runner.num_pages, page_size)
    cache = BlockAllocator(runner.num_pages, page_size, is_sharing, journal, tiers)
    if journal is not None and journal.num_recovered + journal.num_dropped:
        log.info("%d pages of the KV cache are taken over, %d dropped", journal.num_recovered, journal.num_dropped)
    drafter, draft_lengths = runner.drafter, None
    if config.scheduling.speculative == "ngram":
        drafter, draft_lengths = NgramDrafter(config.scheduling.num_speculative_tokens, cache), DraftLengths()
    elif runner.draft_runner is not None and facts.draft is not None:
        vocab_sizes = facts.draft.vocab_size, facts.vocab_size
        limits = DraftLimits(config.scheduling.num_speculative_tokens, facts.draft.max_model_len, *vocab_sizes)
        builder = BatchBuilder(runner.num_pages, page_size, facts.max_model_len)
        clock = time.monotonic if runner.can_overlap else time.thread_time
        run = partial(_run, runner.draft_runner)
        drafter, draft_lengths = DraftModel(run, builder, cache, limits, clock), DraftLengths()
    return Scheduler(
        cache,
        Limits(facts.max_model_len, facts.vocab_size, facts.eos_token_ids),
        budget,
        drafter,
        grammars,
        draft_lengths,
        plans_decodes_alone=not runner.can_overlap,
    )


def _yielding(config: Config, runner: Runner) -> tuple[int, int]:
    """Returns `max_num_yielding` and `yields_every` of the `Budget`.

    On a CPU each token makes a step longer, so fewer than one step in a hundred has tokens of requests that give way,
    unless the operator has set their number of rows.
    """
    if runner.can_overlap or config.scheduling.max_batch_seqs is not None:
        return config.scheduling.rows_while_live(), 1
    return max(1, config.scheduling.max_num_seqs // PART_OF_TURN), TURN_STEPS


def close_store(scheduler: Scheduler, runner: Runner) -> None:
    """Puts what is cached into the tiers below the KV cache, if there are any, and ends them."""
    if runner.page_store is not None:
        scheduler.save_cache(SAVE_S)
        runner.page_store.close()


def _run(runner: Runner, batch: Batch) -> ForwardOutput:
    return runner.launch(batch).result()
