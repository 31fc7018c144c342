"""The scheduler's main loop: messages in, one step, results out."""

import ctypes
import gc
import logging
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from messages.channels import Receiver
from messages.config.server import Config
from messages.control.histograms import HistogramCounts
from messages.control.processes import Drain, place_of, worker_number
from messages.ring.requests import ToScheduler
from messages.ring.steps import Batch
from runtime.background import call_at_low_priority
from runtime.prefetch import prefetch
from runtime.process import ProcessLink, run_process
from runtime.profiling import Observer, Part
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.torch_import import import_torch
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding_half import close_store, make_scheduler, source_of_drafts
from scheduler_proc.encoder_senders import EncoderSenders
from scheduler_proc.grammar_builder import GrammarBuilder
from scheduler_proc.ranks import find_kv_file, load_as_leader
from scheduler_proc.reply_sender import ReplySender
from scheduler_proc.step_times import StepTimes
from scheduler_proc.stepper import Runner, RunningStep, Stepper

MIB = 1 << 20

log = logging.getLogger("sluice.scheduler")

LoadRunner = Callable[[Config, Report, int], Runner]
"""Loads the model for the scheduler of this number on this machine. Raises `BootError` if it cannot."""

FindLoader = Callable[[ProcessLink], LoadRunner]
"""Prepares to load the model, without the device or much memory, so that it can run while a predecessor serves."""


def import_runner(link: ProcessLink) -> LoadRunner:
    """Returns the loader of the real runner."""
    link.phase("importing torch")
    import_torch()
    # Imported late: it needs torch, and the operator should see the phase first.
    from scheduler_proc.computing.load_runner import find_shared_models, load_models

    config, files = link.config, link.run_dir
    kv_file = find_kv_file(link)
    if config.run.num_ranks > 1:
        return partial(load_as_leader, link, load_models, kv_file)
    weights_file = files.weights_file if config.model.share_weights else None
    prepared = None
    if link.is_successor:
        prepared = find_shared_models(config, link.phase, worker_number(link.name), weights_file)

    def load_runner(config: Config, report: Report, engine: int) -> Runner:
        model = prepared or load_models(config, report, engine, weights_file)
        runner = model.make_runner(report, kv_file)
        if config.facts.vision is not None and runner.span_rows is not None:
            runner.span_rows.open_file(files.rows_file(place_of(link.name)), int(config.images.image_cache_mb * MIB))
        return runner

    return load_runner


def serve(link: ProcessLink, find_loader: FindLoader = import_runner) -> None:
    """Runs steps until the launcher stops it. Raises `BootError` if it cannot start."""
    engine = worker_number(link.name)
    if not link.is_spare:
        prefetch(link.config.model, Path(link.config.facts.model_dir))
    load_runner = call_at_low_priority(partial(find_loader, link)) if link.is_spare else find_loader(link)
    if not link.stand_by():
        return
    runner = load_runner(link.config, link.phase, engine + 1 - link.config.first_engine)
    grammars = GrammarBuilder(link.config, link.wake)
    receiver: Receiver[ToScheduler] = Receiver(link.run_dir.socket(link.name), ToScheduler)
    has_encoders = link.config.facts.vision is not None
    encoders = EncoderSenders(engine, link.run_dir, link.open_sender, link.close_sender) if has_encoders else None
    scheduler = make_scheduler(link.config, runner, grammars, link.wake, encoders)
    replies = ReplySender(scheduler, link.open_sender("detokenizer"), engine)
    link.add_receiver(receiver)
    step_times = StepTimes()

    def histograms() -> dict[str, HistogramCounts]:
        return {**step_times.counts(), "grammar_seconds": grammars.seconds.counts()}

    def gauges() -> dict[str, float]:
        return {**scheduler.gauges(), **runner.memory_gauges()}

    stepper = Stepper(scheduler, runner, step_times, has_news=receiver.has_arrived)
    for use in link.on_scheduler:
        use(scheduler, stepper)
    add_profile(link, scheduler, stepper)
    settle_memory()
    link.ready(runner.degraded, {**runner.placement, "speculative": source_of_drafts(link.config, runner)})
    num_idle_turns = 0
    with closing(stepper):
        while not link.is_stopping:
            if any(isinstance(message, Drain) for message in link.receive_control()):
                scheduler.close_queue()
            for message in receiver.receive():
                scheduler.receive(message)
            replies.send()
            start_s = time.monotonic()
            batch = stepper.plan()
            # Timeline events of the plan are sent before a long step; otherwise they travel with its result.
            if batch is not None and step_times.may_be_long(batch):
                replies.send()
            is_busy = batch is not None or stepper.has_step
            link.beat(gauges, is_busy=is_busy, histograms=histograms)
            if is_busy:
                num_idle_turns = 0
                stepper.step(batch, start_s)
                replies.send()
                continue
            if scheduler.pop_drained():
                link.drained(scheduler.num_waiting)
            num_idle_turns += 1
            if num_idle_turns == 2:  # a wait brought no message, so the check delays no request
                check(scheduler)
            replies.flush()
            link.wait()
    receiver.close()
    replies.close()
    close_store(scheduler, runner)


def settle_memory() -> None:
    """Excludes the objects of the start from collections, and gives the system the memory that the start has freed.

    These objects live as long as the process; full collections would walk them in mid-step.
    """
    gc.collect()
    gc.freeze()
    with suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def add_profile(link: ProcessLink, scheduler: Scheduler, stepper: Stepper) -> None:
    """Registers the parts of a profile of this process."""
    link.profiler.make_observer = make_observer
    link.profiler.parts += [
        Part(scheduler, "schedule", lambda *_: "schedule"),
        Part(stepper, "launch", step_name),
        Part(stepper, "result", result_name),
        Part(scheduler, "commit", lambda *_: "commit"),
    ]


def make_observer() -> Observer:
    # Imported late: it imports torch.
    from scheduler_proc.computing.torch_observer import TorchObserver

    return TorchObserver()


def step_name(batch: Batch) -> str:
    """`step 7 mixed rows=32 tokens=95`."""
    return f"step {batch.step_id} {batch.phase} rows={batch.num_rows} tokens={batch.num_tokens}"


def result_name(running: RunningStep) -> str:
    return f"result of step {running.batch.step_id}"


def check(scheduler: Scheduler) -> None:
    """Checks invariants while idle. A violation is logged, and the process continues."""
    try:
        scheduler.check()
    except AssertionError:
        log.exception("the integrity check failed: %s", scheduler.gauges())


def main() -> int:
    return run_process("scheduler_proc", serve)
