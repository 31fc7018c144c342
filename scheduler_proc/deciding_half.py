"""Makes the scheduler for a runner."""

import logging
import time
from collections.abc import Callable

from messages.config.server import Config
from messages.errors import BootError
from runtime.adapter_table import read_table
from scheduler_proc.adapter_reader import AdapterReader
from scheduler_proc.deciding.adapter_slots import HOST_ADAPTERS_PER_SLOT, AdapterSlots
from scheduler_proc.deciding.drafting.draft_lengths import DraftLengths
from scheduler_proc.deciding.drafting.draft_model import DraftLimits, DraftModel
from scheduler_proc.deciding.drafting.draft_planner import DraftPlanner
from scheduler_proc.deciding.drafting.drafts import NgramDrafter
from scheduler_proc.deciding.image_asks import Encoders
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.open_cache import open_cache
from scheduler_proc.deciding.pages.page_journal import PageJournal
from scheduler_proc.deciding.pages.page_tiers import SAVE_S
from scheduler_proc.deciding.pages.span_columns import SpanColumns
from scheduler_proc.deciding.placed_spans import PlacedSpans
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.rows.batch_columns import BatchBuilder
from scheduler_proc.deciding.scheduler import GrammarSource, Scheduler
from scheduler_proc.deciding.step_plan import Budget
from scheduler_proc.stepper import AdapterRunner, Runner

TURN_STEPS, PART_OF_TURN = 256, 8
"""On a CPU, while clients have rows, one step in `TURN_STEPS` has tokens of batches, 1/`PART_OF_TURN` of all rows."""

log = logging.getLogger("sluice.scheduler")


def make_scheduler(
    config: Config,
    runner: Runner,
    grammars: GrammarSource | None = None,
    wake: Callable[[], None] | None = None,
    encoders: Encoders | None = None,
) -> Scheduler:
    """Returns a scheduler for the pages of `runner`, which have room for a request of full length.

    `wake` is called in another thread when pages have arrived from a lower tier. Without `encoders` no prompt has
    images.
    """
    facts, page_size = config.facts, config.cache.block_size
    num_rows, num_tokens = config.scheduling.max_num_seqs, runner.max_num_batched_tokens
    budget = Budget(num_rows, num_tokens, *_yielding(config, runner), num_stages=runner.num_stages)
    log.info(
        "%d pages of %d tokens; at most %d rows and %d tokens in a step",
        runner.num_pages,
        page_size,
        budget.max_num_seqs,
        budget.max_num_batched_tokens,
    )
    memory, store = runner.page_memory, runner.page_store
    if store is not None and wake is not None:
        for each in filter(None, (store, store.states)):
            each.wake = wake
    is_sharing = config.cache.enable_prefix_caching
    cache = open_cache(runner.num_pages, page_size, is_sharing, memory, store, runner.windows, runner.states)
    if config.model.num_lora_slots:
        cache.add_observer(make_adapter_slots(config, runner, wake))
    cache.add_observer(PlacedSpans(runner.span_rows, page_size, encoders, budget.max_num_batched_tokens))
    cache.add_observer(SpanColumns())
    journal = cache.find_observer(PageJournal)
    if journal is not None and journal.num_recovered + journal.num_dropped:
        log.info("%d pages of the KV cache are taken over, %d dropped", journal.num_recovered, journal.num_dropped)
    return Scheduler(
        cache,
        Limits(facts.max_model_len, facts.vocab_size, facts.eos_token_ids, config.model.num_lora_slots > 0),
        budget,
        make_draft_planner(config, runner, cache),
        grammars,
        plans_decodes_alone=not runner.can_overlap and runner.num_stages == 1,
    )


def make_adapter_slots(config: Config, runner: Runner, wake: Callable[[], None] | None) -> AdapterSlots:
    """Returns the slots of LoRA adapters. Raises `BootError` for an adapter that is unusable."""
    num_slots = config.model.num_lora_slots
    if config.first_engine > 1:
        raise BootError("LoRA adapters are files of the server's machine: engines on other machines cannot read them")
    assert isinstance(runner, AdapterRunner)
    reader = AdapterReader(runner.read_adapter, wake or (lambda: None))
    in_memory = reader.read_table(read_table(config.facts.adapter_table), HOST_ADAPTERS_PER_SLOT * num_slots)
    return AdapterSlots(num_slots, reader, in_memory)


def source_of_drafts(config: Config, runner: Runner) -> str:
    """Returns --speculative; for auto the kind that it stands for on this device."""
    source = config.scheduling.speculative
    if source != "auto":
        return source
    is_on_gpu = runner.can_overlap or runner.placement.get("device", "cpu").startswith("cuda")
    return "none" if is_on_gpu else "ngram"


def make_draft_planner(config: Config, runner: Runner, cache: BlockAllocator) -> DraftPlanner | None:
    """Returns the planner of draft tokens, `None` without speculation."""
    facts, num_drafts = config.facts, config.scheduling.num_speculative_tokens
    if source_of_drafts(config, runner) == "ngram":
        return DraftPlanner(cache, NgramDrafter(num_drafts, cache), DraftLengths())
    if runner.draft_runner is None:
        return None
    draft = facts.draft or facts  # an MTP head has the model's vocabulary and context
    sizes = draft.max_model_len, draft.vocab_size, facts.vocab_size
    limits = DraftLimits(num_drafts, *sizes, is_mtp=facts.draft is None)
    builder = BatchBuilder(cache.num_pages, cache.page_size, facts.max_model_len)
    clock = time.monotonic if runner.can_overlap or runner.num_stages > 1 else time.thread_time
    return DraftPlanner(cache, DraftModel(builder, cache, limits, clock), DraftLengths())


def _yielding(config: Config, runner: Runner) -> tuple[int, int]:
    """Returns `max_num_yielding` and `yields_every` of the `Budget`.

    On a CPU each token makes a step longer, so fewer than one step in a hundred has tokens of requests that give way,
    unless the operator has set their number of rows.
    """
    if runner.can_overlap or config.scheduling.max_batch_seqs is not None:
        return config.scheduling.rows_while_live(), 1
    return max(1, config.scheduling.max_num_seqs // PART_OF_TURN), TURN_STEPS


def close_store(scheduler: Scheduler, runner: Runner) -> None:
    """Saves cached pages to the tiers below the KV cache, if there are any, and closes these."""
    if runner.page_store is not None:
        scheduler.save_cache(SAVE_S)
        runner.page_store.close()
