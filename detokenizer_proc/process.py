"""The detokenizer's main loop: a step's tokens come in, their text leaves, and the scheduler hears of stop strings."""

from detokenizer_proc.detokenizer import Detokenizer
from detokenizer_proc.vocabulary import load_vocabulary
from messages.channels import Receiver, Sender
from messages.process import ProcessLink, run_process
from messages.replies import DetokenizeMsg, OpenStream, ToDetokenizer, ToFrontend
from messages.requests import DropBefore, ToScheduler


def serve(link: ProcessLink) -> None:
    """Detokenizes until told to stop. Raises `BootError` where the model has no tokenizer."""
    facts = link.config.facts
    link.phase("loading the tokenizer")
    detokenizer = Detokenizer(load_vocabulary(facts.tokenizer_dir, facts.vocab_size))
    inbox: Receiver[ToDetokenizer] = Receiver(link.run_dir.socket("detokenizer"), ToDetokenizer)
    to_scheduler: Sender[ToScheduler] = Sender(link.run_dir.socket("scheduler"))
    to_frontend: Sender[ToFrontend] = Sender(link.run_dir.socket("frontend"))
    link.add_receiver(inbox)
    link.ready()
    while not link.is_stopping:
        link.wait()
        link.take_orders()
        for message in inbox.take():
            match message:
                case OpenStream():
                    stop = detokenizer.open_stream(message)
                    stops = [] if stop is None else [stop]
                case DetokenizeMsg():
                    replies, stops = detokenizer.take_step(message)
                    to_frontend.send(replies)
                case DropBefore(uid):
                    detokenizer.drop_before(uid)
                    stops = []
            for stop in stops:
                to_scheduler.send(stop)
        link.beat(detokenizer.gauges)
    for channel in (inbox, to_scheduler, to_frontend):
        channel.close()


def main() -> int:
    return run_process("detokenizer_proc", serve)
