"""Makes the deciding half for the runner that is to run its steps."""

import logging

from messages.config import Config
from messages.errors import BootError
from scheduler_proc.deciding.block_allocator import BlockAllocator
from scheduler_proc.deciding.policy import Budget
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.stepper import Runner

log = logging.getLogger("sluice.scheduler")


def make_scheduler(config: Config, runner: Runner) -> Scheduler:
    """Returns a scheduler for the pages of `runner`. Raises `BootError` where one request would not fit in them."""
    facts, page_size = config.facts, config.cache.block_size
    if runner.num_pages * page_size < facts.max_model_len:
        raise BootError(
            f"the KV cache has room for {runner.num_pages * page_size} tokens ({runner.num_pages} pages of "
            f"{page_size}) and one request may have {facts.max_model_len}: lower --max-model-len, or raise "
            "--num-pages or --kv-cache-memory-gb"
        )
    budget = Budget(config.scheduling.max_num_seqs, runner.max_num_batched_tokens)
    log.info(
        "%d pages of %d tokens; at most %d rows and %d tokens in a step",
        runner.num_pages,
        page_size,
        budget.max_num_seqs,
        budget.max_num_batched_tokens,
    )
    return Scheduler(
        BlockAllocator(runner.num_pages, page_size, config.cache.enable_prefix_caching),
        Limits(facts.max_model_len, facts.vocab_size, facts.eos_token_ids),
        budget,
        runner.drafter,
    )
