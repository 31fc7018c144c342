"""The detokenizer's main loop: receives tokens, sends their text, and notifies the scheduler of stop strings."""

import gc

from detokenizer_proc.detokenizer import Detokenizer
from detokenizer_proc.vocabulary import load_vocabulary
from messages.channels import Receiver
from messages.engines import SchedulerSenders
from messages.frontends import FrontendSenders
from messages.ring.replies import OpenStream, ToDetokenizer
from messages.ring.requests import DropBefore
from messages.ring.uids import frontend_blocks
from runtime.process import ProcessLink, run_process


def serve(link: ProcessLink) -> None:
    """Detokenizes until the process is stopped. Raises `BootError` if the model has no tokenizer."""
    facts = link.config.facts
    link.phase("loading the tokenizer")
    detokenizer = Detokenizer(load_vocabulary(facts.tokenizer_dir, facts.vocab_size))
    if not link.stand_by():
        return
    inbox: Receiver[ToDetokenizer] = Receiver(link.run_dir.socket("detokenizer"), ToDetokenizer)
    to_schedulers = SchedulerSenders(link.open_sender, link.close_sender)
    to_frontends = FrontendSenders(link.open_sender, link.close_sender, lambda: frontend_blocks(link.run_dir.sockets()))
    link.add_receiver(inbox)
    # The vocabulary lives as long as the process. Without this, every full garbage collection traverses it.
    gc.collect()
    gc.freeze()
    link.ready()
    while not link.is_stopping:
        link.wait()
        link.receive_control()
        for message in inbox.receive():
            if isinstance(message, OpenStream):
                to_frontends.expect(message.uid)
            replies, stops = detokenizer.handle(message)
            for reply in replies:
                to_frontends.send(reply)
            if isinstance(message, DropBefore):
                to_frontends.forget(message)
            for stop in stops:
                to_schedulers.send(stop.engine, stop)
        link.beat(detokenizer.gauges)
        to_schedulers.tidy()
    for channel in (inbox, to_schedulers, to_frontends):
        channel.close()


def main() -> int:
    return run_process("detokenizer_proc", serve)
