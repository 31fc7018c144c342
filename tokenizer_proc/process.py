"""The tokenizer's main loop: prompts come in as text or ids, and leave as valid ids or as a refusal."""

import logging
import secrets
import time
from typing import TypeVar

import msgspec

from messages.channels import Receiver, Sender
from messages.errors import ChannelFullError, ErrorInfo, RequestError
from messages.process import ProcessLink, run_process
from messages.replies import ToFrontend, UserReply
from messages.requests import AbortMsg, DropBefore, TokenizeMsg, ToScheduler, ToTokenizer, UserMsg
from tokenizer_proc.encoding import load_encoding
from tokenizer_proc.prompts import PromptReader

T = TypeVar("T")

LONG_PROMPT_CHARS = 100_000
"""A text from which on the launcher is told before it is tokenized: it takes about a tenth of a second."""

log = logging.getLogger("sluice.tokenizer")


def serve(link: ProcessLink) -> None:
    """Tokenizes until told to stop. Raises `BootError` where the model has no tokenizer."""
    facts = link.config.facts
    link.phase("loading the tokenizer")
    reader = PromptReader(load_encoding(facts.tokenizer_dir), facts.vocab_size, facts.max_model_len)
    inbox: Receiver[ToTokenizer] = Receiver(link.run_dir.socket("tokenizer"), ToTokenizer)
    to_scheduler: Sender[ToScheduler] = Sender(link.run_dir.socket("scheduler"))
    to_frontend: Sender[ToFrontend] = Sender(link.run_dir.socket("frontend"))
    chars_in_hand = 0

    def gauges() -> dict[str, float]:
        return {"chars_in_hand": chars_in_hand}

    link.add_receiver(inbox)
    link.ready()
    while not link.is_stopping:
        link.wait()
        link.take_orders()
        for message in inbox.take():
            if isinstance(message, AbortMsg | DropBefore):
                send_or_drop(to_scheduler, message)
                continue
            chars_in_hand = len(message.prompt_text or "")
            link.beat(gauges, is_busy=chars_in_hand >= LONG_PROMPT_CHARS)
            answer = read_or_refuse(reader, message)
            if isinstance(answer, UserMsg):
                send_or_drop(to_scheduler, answer)
            else:
                send_or_drop(to_frontend, answer)
            chars_in_hand = 0
        link.beat(gauges)
    for channel in (inbox, to_scheduler, to_frontend):
        channel.close()


def send_or_drop(channel: Sender[T], message: T) -> None:
    """Sends `message`. A process that does not read 100,000 of them is replaced, and its successor is told all anew."""
    try:
        channel.send(message)
    except ChannelFullError as error:
        log.error("dropped %s: %s", type(message).__name__, error)


def read_or_refuse(reader: PromptReader, message: TokenizeMsg) -> UserMsg | UserReply:
    """Returns what the scheduler gets or, for a prompt that cannot be served, the final reply to the client."""
    try:
        return reader.read(message)
    except RequestError as refusal:
        error = refusal.info
    except BaseException:  # fails alone; a panic in the tokenizers library is no Exception
        reference = secrets.token_hex(4)
        log.exception("request %d failed in the tokenizer, reference %s", message.uid, reference)
        error = ErrorInfo(500, f"The prompt could not be tokenized (reference {reference})", "server_error")
    return UserReply(
        uid=message.uid,
        attempt=message.attempt,
        finish_reason="error",
        stamps=msgspec.structs.replace(message.stamps, tokenized_ns=time.monotonic_ns()),
        error=error,
    )


def main() -> int:
    return run_process("tokenizer_proc", serve)
