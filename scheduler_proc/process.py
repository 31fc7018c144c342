"""The scheduler's main loop: messages in, one step, results out."""

import gc
import logging
from collections.abc import Callable
from typing import Protocol

from messages.channels import Receiver, Sender
from messages.config import Config
from messages.errors import BootError, ChannelFullError
from messages.process import ProcessLink, run_process
from messages.replies import ToDetokenizer
from messages.requests import ToScheduler
from messages.steps import Batch, ForwardOutput
from scheduler_proc.deciding.isolation import run_step
from scheduler_proc.deciding.kv_cache import KvCache
from scheduler_proc.deciding.policy import Budget
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler

log = logging.getLogger("sluice.scheduler")


class Runner(Protocol):
    """The computing half as this loop sees it. `max_num_batched_tokens`: the flag, or its default on the device."""

    num_pages: int
    max_num_batched_tokens: int

    def run(self, batch: Batch) -> ForwardOutput:
        """Runs one step; its K and V are in the cache afterwards."""
        ...


Report = Callable[[str, float | None], None]
LoadRunner = Callable[[Config, Report], Runner]


def load_torch_runner(config: Config, report: Report) -> Runner:
    """Returns the real runner. Raises `BootError` for a model that cannot be loaded."""
    report("importing torch", None)
    # Imported here and not above: it takes seconds, and the operator should see what is being waited for.
    from scheduler_proc.computing.runner import load_runner

    return load_runner(config, report)


def serve(link: ProcessLink, load_runner: LoadRunner = load_torch_runner) -> None:
    """Runs steps until the launcher says stop. Raises `BootError` where it cannot start."""
    runner = load_runner(link.config, link.phase)
    scheduler = make_scheduler(link.config, runner)
    receiver: Receiver[ToScheduler] = Receiver(link.run_dir.socket("scheduler"), ToScheduler)
    sender: Sender[ToDetokenizer] = Sender(link.run_dir.socket("detokenizer"))
    link.add_receiver(receiver)
    # What start-up made lives as long as the process: without this, every full collection walks all of it in mid-step.
    gc.collect()
    gc.freeze()
    link.ready()
    num_idle_turns = 0
    while not link.is_stopping:
        link.take_orders()
        for message in receiver.take():
            scheduler.take(message)
        send_replies(scheduler, sender)
        batch = scheduler.schedule()
        link.beat(scheduler.gauges, is_busy=batch is not None)
        if batch is not None:
            num_idle_turns = 0
            scheduler.commit(*run_step(runner.run, batch))
            send_replies(scheduler, sender)
            continue
        num_idle_turns += 1
        if num_idle_turns == 2:  # a wait has brought nothing, so no request waits for the check
            check(scheduler)
        link.wait()
    receiver.close()
    sender.close()


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
        KvCache(runner.num_pages, page_size, config.cache.enable_prefix_caching),
        Limits(facts.max_model_len, facts.vocab_size, facts.eos_token_ids),
        budget,
    )


def send_replies(scheduler: Scheduler, sender: Sender[ToDetokenizer]) -> None:
    """Sends what the detokenizer must know; never waits for it."""
    for reply in scheduler.take_replies():
        try:
            sender.send(reply)
        except ChannelFullError as error:
            # Minutes of steps unread: it is beyond help, and its successor is told all by continuations.
            log.error("dropped %s: %s", type(reply).__name__, error)


def check(scheduler: Scheduler) -> None:
    """Looks for leaks and broken accounts while nothing runs; a fault is logged, and the process serves on."""
    try:
        scheduler.check()
    except AssertionError:
        log.exception("the integrity check failed: %s", scheduler.gauges())


def main() -> int:
    return run_process("scheduler_proc", serve)
