"""The tokenizer's main loop: converts text, chats and ids to validated ids, or rejects them."""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import msgspec

from messages.channels import Receiver
from messages.columns import num_int32
from messages.config.images import VisionFacts
from messages.config.server import Config
from messages.engines import SchedulerSenders
from messages.errors import BootError, ErrorInfo, RequestError
from messages.frontends import FrontendSenders
from messages.ring.replies import DecodeReply, EncodeReply, UserReply
from messages.ring.requests import (
    AbortMsg,
    ChatPrompt,
    DecodeMsg,
    DropBefore,
    EncodeMsg,
    FramesLost,
    TokenizeMsg,
    ToTokenizer,
    UserMsg,
)
from messages.ring.timeline import Tokenized, TokenizedRow
from messages.ring.uids import frontend_blocks
from runtime.background import NUM_THREADS, BackgroundCalls
from runtime.chat_files import read_chat_files
from runtime.images.registry import read_rule
from runtime.process import BEAT_INTERVAL_S, ProcessLink, run_process
from tokenizer_proc import calls
from tokenizer_proc.backlog import Backlog, Entry, Text, uids_of
from tokenizer_proc.encoding import Encoding, load_encoding
from tokenizer_proc.grammar_checks import GrammarChecks
from tokenizer_proc.image_forms import ImagePieces
from tokenizer_proc.prompts import PromptReader
from tokenizer_proc.template_process import ChatRenderer, TemplateProcess

TURN_S = 0.02
"""How long to process short texts before receiving new messages, which may abort some of them."""

LONG_TEXT_TIMEOUT_S = 600.0

SHORT_CPU_S = 0.4
"""CPU time limit for rendering a short chat, during which no other request is served."""

REPORT_INTERVAL_S = 0.9
"""Interval of the reports to frontends about tokenized prompts. One message per prompt would cost too much."""

Answer = UserMsg | UserReply | EncodeReply | DecodeReply

log = logging.getLogger("sluice.tokenizer")


class ThreadTemplates:
    """Renders chats with one template process per thread."""

    def __init__(self, begin: Callable[[], ChatRenderer]):
        self._begin = begin
        self._local = threading.local()

    def render(self, chat: ChatPrompt) -> str | ImagePieces:
        """See `ChatRenderer`."""
        if not hasattr(self._local, "templates"):
            self._local.templates = self._begin()
        return self._local.templates.render(chat)


class TextServer:
    """Answers individual messages that contain text or ids."""

    def __init__(
        self,
        encoding: Encoding,
        templates: ChatRenderer,
        vocab_size: int,
        max_model_len: int,
        long_templates: ChatRenderer | None = None,
        named: Mapping[str, str] = {},
        vision: VisionFacts | None = None,
    ):
        self._encoding = encoding
        self._templates = templates
        self._long_templates = long_templates or templates
        self._vocab_size = vocab_size
        self._reader = PromptReader(encoding, vocab_size, max_model_len, named, vision)

    def answer(self, message: Text, *, is_long: bool = False) -> list[Answer]:
        """Returns messages for the scheduler or, for calls and rejected prompts, for the frontend. Never raises.

        Long messages may be answered in any thread.
        """
        begun_ns = time.monotonic_ns()
        try:
            if isinstance(message, DecodeMsg):
                return [calls.decode(message, self._encoding, self._vocab_size)]
            templates = self._long_templates if is_long else self._templates
            prompt = self._reader.text_of(message, templates.render)
            if isinstance(message, EncodeMsg):
                return [calls.encode(message, prompt.text if prompt else "", self._encoding)]
            return [*self._reader.read(message, prompt, begun_ns)]
        except BaseException as error:
            return _refuse(message, error, begun_ns)


def serve(link: ProcessLink) -> None:
    """Tokenizes until the process is stopped. Raises `BootError` if the model has no tokenizer."""
    link.phase("loading the tokenizer")
    server = load_server(link.config)
    if not link.stand_by():
        return
    main_loop = MainLoop(link, server)
    link.ready()
    while not link.is_stopping:
        main_loop.turn()
    main_loop.close()


class MainLoop:
    """Receives, answers and forwards messages. Long texts are tokenized in other threads."""

    def __init__(self, link: ProcessLink, server: TextServer):
        self._link = link
        self._server = server
        self._inbox: Receiver[ToTokenizer] = Receiver(link.run_dir.socket(link.name), ToTokenizer)
        self._to_schedulers = SchedulerSenders(link.open_sender, link.close_sender)
        self._to_frontends = FrontendSenders(
            link.open_sender, link.close_sender, lambda: frontend_blocks(link.run_dir.sockets())
        )
        self._grammars = GrammarChecks(link.config, link.wake)
        self._backlog = Backlog()
        self._in_threads: BackgroundCalls[Entry, list[Answer]] = BackgroundCalls(link.wake, LONG_TEXT_TIMEOUT_S)
        self._num_tokenized = 0
        self._passed_on: list[TokenizedRow] = []
        self._reported_s = 0.0
        link.add_receiver(self._inbox)

    def turn(self) -> None:
        """Waits for messages and processes them for a bounded time."""
        self._link.wait(0.0 if self._backlog.has_short or self._can_start_long else BEAT_INTERVAL_S)
        self._link.receive_control()
        for message in self._grammars.pop_done():
            self._send(message)
        for entry, outcome in self._in_threads.pop_done():
            begun_ns = time.monotonic_ns()
            self._send_answers(
                entry, _refuse(entry.message, outcome, begun_ns) if isinstance(outcome, Exception) else outcome
            )
        for message in self._inbox.receive():
            self._receive(message)
        self._answer_some()
        if self._passed_on and time.monotonic() - self._reported_s >= REPORT_INTERVAL_S:
            self._to_frontends.send(Tokenized(tuple(self._passed_on)))
            self._passed_on, self._reported_s = [], time.monotonic()
        self._link.beat(self._gauges)
        self._to_schedulers.tidy()

    def close(self) -> None:
        self._grammars.close()
        for channel in (self._inbox, self._to_schedulers, self._to_frontends):
            channel.close()

    @property
    def _can_start_long(self) -> bool:
        return self._backlog.has_long and len(self._in_threads) < NUM_THREADS

    def _gauges(self) -> dict[str, float]:
        return {**self._backlog.gauges(), "num_tokenized": self._num_tokenized}

    def _receive(self, message: ToTokenizer) -> None:
        match message:
            case TokenizeMsg() | EncodeMsg() | DecodeMsg():
                self._to_frontends.expect(message.uid)
                self._backlog.add(message)
            case AbortMsg():
                final = self._backlog.abort(message)
                if final is not None:
                    self._to_frontends.send(final)
                elif not self._grammars.hold(message):
                    self._to_schedulers.send(message.engine, message)
            case DropBefore():
                self._backlog.forget(message)
                for engine in message.engines:
                    self._to_schedulers.send(engine, message)
                self._to_frontends.forget(message)
            case FramesLost():
                self._to_frontends.send(message)
            case _:
                self._to_schedulers.send(message.engine, message)

    def _answer_some(self) -> None:
        """Answers short texts for up to `TURN_S`. Starts a long one if no short one is left."""
        end_s = time.monotonic() + TURN_S
        while time.monotonic() < end_s:
            entry = self._backlog.pop_short()
            if entry is None:
                break
            self._send_answers(entry, self._server.answer(entry.message))
        if not self._backlog.has_short and self._can_start_long:
            entry = self._backlog.pop_long()
            if entry is not None:
                self._in_threads.start(entry, partial(self._server.answer, entry.message, is_long=True))

    def _send_answers(self, entry: Entry, answers: list[Answer]) -> None:
        """Sends the answers whose requests are still open."""
        self._num_tokenized += len(answers)
        for answer in answers:
            if answer.uid not in entry.requested:
                continue
            if isinstance(answer, UserMsg) and answer.sampling_params.grammar is not None:
                self._grammars.start(answer)
            else:
                self._send(answer)
        self._backlog.done(entry)

    def _send(self, message: Answer | AbortMsg) -> None:
        if isinstance(message, UserMsg | AbortMsg):
            self._to_schedulers.send(message.engine, message)
        else:
            self._to_frontends.send(message)
        if isinstance(message, UserMsg):
            self._passed_on.append(tokenized_row(message))


def load_server(config: Config) -> TextServer:
    """Raises `BootError` for a model without a tokenizer, and for an invalid template from the command line.

    With an invalid template of the model itself, only chats are rejected.
    """
    facts = config.facts
    files = read_chat_files(facts.tokenizer_dir, config.model.chat_template)
    if facts.vision is not None:
        rule = read_rule(facts.vision)
        marker = rule.marker_in("".join(files.templates.values()))
        files = replace(files, image_marker=marker, image_part=rule.part.replace(rule.marker, marker))
    templates = TemplateProcess(files, SHORT_CPU_S)
    encoding = load_encoding(facts.tokenizer_dir)
    mistake = templates.find_mistake()
    if mistake is not None and config.model.chat_template:
        raise BootError(f"the chat template {config.model.chat_template} has a mistake: {mistake}")
    long_templates = ThreadTemplates(partial(TemplateProcess, files))
    sizes = facts.vocab_size, facts.max_model_len
    return TextServer(encoding, templates, *sizes, long_templates, files.special_tokens, facts.vision)


def tokenized_row(prompt: UserMsg) -> TokenizedRow:
    """Returns the frontend's report of a prompt that was sent to the scheduler."""
    stamps = prompt.stamps
    return TokenizedRow(
        prompt.uid, prompt.attempt, stamps.tokenize_begun_ns, stamps.tokenized_ns, num_int32(prompt.input_ids)
    )


def _refuse(message: Text, error: BaseException, begun_ns: int) -> list[Answer]:
    """Returns replies with `error`. An error other than `RequestError` is logged and fails only this message."""
    if isinstance(error, RequestError):
        return refuse(message, error.info, begun_ns)
    reference = secrets.token_hex(4)
    # A panic in the tokenizers library is not an Exception.
    log.error("request %d failed in the tokenizer, reference %s", message.uid, reference, exc_info=error)
    what = "tokens" if isinstance(message, DecodeMsg) else "prompt"
    verb = "decoded" if isinstance(message, DecodeMsg) else "tokenized"
    return refuse(
        message, ErrorInfo(500, f"The {what} could not be {verb} (reference {reference})", "server_error"), begun_ns
    )


def refuse(message: Text, error: ErrorInfo, begun_ns: int) -> list[Answer]:
    """Returns replies with `error`, one for each request."""
    match message:
        case TokenizeMsg():
            stamps = msgspec.structs.replace(
                message.stamps, tokenize_begun_ns=begun_ns, tokenized_ns=time.monotonic_ns()
            )
            return [UserReply(uid, message.attempt, "error", stamps=stamps, error=error) for uid in uids_of(message)]
        case EncodeMsg():
            return [EncodeReply(message.uid, error=error)]
        case DecodeMsg():
            return [DecodeReply(message.uid, error=error)]


def main() -> int:
    return run_process("tokenizer_proc", serve)
