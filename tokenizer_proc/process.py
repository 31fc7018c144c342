"""The tokenizer's main loop: prompts come in as text, chats or ids, and leave as valid ids or as a refusal."""

import logging
import secrets
import time

import msgspec

from messages.cache import CacheQuestion
from messages.channels import Receiver
from messages.columns import num_int32
from messages.config import Config
from messages.engines import SchedulerSenders
from messages.errors import BootError, ErrorInfo, RequestError
from messages.frontends import FrontendSenders
from messages.replies import DecodeReply, EncodeReply, UserReply
from messages.requests import (
    AbortMsg,
    DecodeMsg,
    DropBefore,
    EncodeMsg,
    FlushCache,
    FramesLost,
    TokenizeMsg,
    ToTokenizer,
    UserMsg,
)
from messages.timeline import Tokenized, TokenizedRow
from messages.uids import frontend_blocks
from runtime.chat_files import read_chat_files
from runtime.process import ProcessLink, run_process
from tokenizer_proc import calls
from tokenizer_proc.chat import ChatTemplates
from tokenizer_proc.encoding import Encoding, load_encoding
from tokenizer_proc.grammar_checks import GrammarChecks
from tokenizer_proc.prompts import PromptReader

LONG_PROMPT_CHARS = 100_000
"""A text from which on the launcher is told before it is tokenized: it takes about a tenth of a second."""

TELL_INTERVAL_S = 0.9
"""Frontends are told of prompts that have gone on about once a second: a message for each would cost more than it."""

log = logging.getLogger("sluice.tokenizer")


class TextServer:
    """What the tokenizer does for one message that holds text or ids."""

    def __init__(self, encoding: Encoding, templates: ChatTemplates, vocab_size: int, max_model_len: int):
        self._encoding = encoding
        self._templates = templates
        self._vocab_size = vocab_size
        self._reader = PromptReader(encoding, templates, vocab_size, max_model_len)

    def answer(self, message: TokenizeMsg | EncodeMsg | DecodeMsg) -> UserMsg | UserReply | EncodeReply | DecodeReply:
        """Returns what the scheduler gets or, for a call or what cannot be served, the frontend. Never raises."""
        begun_ns = time.monotonic_ns()
        try:
            match message:
                case TokenizeMsg():
                    return self._reader.read(message)
                case EncodeMsg():
                    return calls.encode(message, self._encoding, self._templates)
                case DecodeMsg():
                    return calls.decode(message, self._encoding, self._vocab_size)
        except RequestError as refusal:
            return refuse(message, refusal.info, begun_ns)
        except BaseException:  # fails alone; a panic in the tokenizers library is no Exception
            reference = secrets.token_hex(4)
            log.exception("request %d failed in the tokenizer, reference %s", message.uid, reference)
            what = "tokens" if isinstance(message, DecodeMsg) else "prompt"
            verb = "decoded" if isinstance(message, DecodeMsg) else "tokenized"
            text = f"The {what} could not be {verb} (reference {reference})"
            return refuse(message, ErrorInfo(500, text, "server_error"), begun_ns)


def serve(link: ProcessLink) -> None:
    """Tokenizes until told to stop. Raises `BootError` where the model has no tokenizer."""
    link.phase("loading the tokenizer")
    server = load_server(link.config)
    if not link.stand_by():
        return
    inbox: Receiver[ToTokenizer] = Receiver(link.run_dir.socket(link.name), ToTokenizer)
    to_schedulers = SchedulerSenders(link.open_sender, link.close_sender)
    to_frontends = FrontendSenders(link.open_sender, link.close_sender, lambda: frontend_blocks(link.run_dir.sockets()))
    grammars = GrammarChecks(link.config, link.wake)
    chars_in_hand = 0
    num_tokenized = 0
    passed_on: list[TokenizedRow] = []
    told_s = 0.0

    def gauges() -> dict[str, float]:
        return {"chars_in_hand": chars_in_hand, "num_tokenized": num_tokenized}

    link.add_receiver(inbox)
    link.ready()
    while not link.is_stopping:
        link.wait()
        link.receive_control()
        for message in grammars.pop_done():
            if isinstance(message, UserReply):
                to_frontends.send(message)
            else:
                to_schedulers.send(message.engine, message)
            if isinstance(message, UserMsg):
                passed_on.append(tokenized_row(message))
        for message in inbox.receive():
            if isinstance(message, AbortMsg) and grammars.keep(message):
                continue
            if not isinstance(message, TokenizeMsg | EncodeMsg | DecodeMsg):
                pass_on(message, to_schedulers, to_frontends)
                continue
            to_frontends.expect(message.uid)
            chars_in_hand = num_chars_of(message)
            link.beat(gauges, is_busy=chars_in_hand >= LONG_PROMPT_CHARS)
            answer = server.answer(message)
            if isinstance(answer, UserMsg) and answer.sampling_params.grammar is not None:
                grammars.start(answer)
            elif isinstance(answer, UserMsg):
                to_schedulers.send(answer.engine, answer)
                passed_on.append(tokenized_row(answer))
            else:
                to_frontends.send(answer)
            chars_in_hand = 0
            num_tokenized += 1
        if passed_on and time.monotonic() - told_s >= TELL_INTERVAL_S:
            to_frontends.send(Tokenized(tuple(passed_on)))
            passed_on, told_s = [], time.monotonic()
        link.beat(gauges)
        to_schedulers.tidy()
    grammars.close()
    for channel in (inbox, to_schedulers, to_frontends):
        channel.close()


def pass_on(
    message: AbortMsg | DropBefore | FlushCache | FramesLost | CacheQuestion,
    to_schedulers: SchedulerSenders,
    to_frontends: FrontendSenders,
) -> None:
    """Sends on what is not about a text, to whom it concerns."""
    match message:
        case DropBefore():
            for engine in message.engines:
                to_schedulers.send(engine, message)
            to_frontends.forget(message)
        case FramesLost():
            to_frontends.send(message)
        case _:
            to_schedulers.send(message.engine, message)


def load_server(config: Config) -> TextServer:
    """Raises `BootError` for a model without a tokenizer, and for a bad template that the operator asked for.

    A bad template of the model's own only refuses chats.
    """
    facts = config.facts
    encoding = load_encoding(facts.tokenizer_dir)
    templates = ChatTemplates(read_chat_files(facts.tokenizer_dir, config.model.chat_template))
    if templates.mistake is not None and config.model.chat_template:
        raise BootError(f"the chat template {config.model.chat_template} has a mistake: {templates.mistake}")
    return TextServer(encoding, templates, facts.vocab_size, facts.max_model_len)


def tokenized_row(prompt: UserMsg) -> TokenizedRow:
    """Returns what the frontend is told of a prompt that has gone on."""
    stamps = prompt.stamps
    return TokenizedRow(
        prompt.uid, prompt.attempt, stamps.tokenize_begun_ns, stamps.tokenized_ns, num_int32(prompt.input_ids)
    )


def num_chars_of(message: TokenizeMsg | EncodeMsg | DecodeMsg) -> int:
    """Returns about how many characters have to be worked through, 0 for a prompt of ids."""
    if isinstance(message, DecodeMsg):
        return len(message.token_ids)
    return len(message.prompt_text or "") + (len(message.chat.messages) if message.chat else 0)


def refuse(
    message: TokenizeMsg | EncodeMsg | DecodeMsg, error: ErrorInfo, begun_ns: int
) -> UserReply | EncodeReply | DecodeReply:
    """Returns the reply that tells the client of `error`."""
    match message:
        case TokenizeMsg():
            stamps = msgspec.structs.replace(
                message.stamps, tokenize_begun_ns=begun_ns, tokenized_ns=time.monotonic_ns()
            )
            return UserReply(message.uid, message.attempt, "error", stamps=stamps, error=error)
        case EncodeMsg():
            return EncodeReply(message.uid, error=error)
        case DecodeMsg():
            return DecodeReply(message.uid, error=error)


def main() -> int:
    return run_process("tokenizer_proc", serve)
