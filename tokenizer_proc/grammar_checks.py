"""Checks the grammars of requests in child processes, while the tokenizer serves other requests."""

import logging
import signal
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator

import msgspec

from messages.config.server import Config, ModelFacts
from messages.errors import ErrorInfo
from messages.ring.replies import UserReply
from messages.ring.requests import AbortMsg, Grammar, UserMsg
from runtime.background import BackgroundCalls, NeverBegunError
from runtime.child_process import ChildEndedError, ChildProcess, ChildTimeoutError, RestartedChild
from runtime.grammars import NUM_KEPT, grammar_is_late, grammars_are_busy
from tokenizer_proc.grammar_child import MAX_CPU_S, GrammarCheck

LOAD_TIMEOUT_S = 120.0
"""The limit for loading a tokenizer: 250,000 tokens take some seconds, on a busy machine many more."""

log = logging.getLogger("sluice.tokenizer")


class GrammarChild(RestartedChild):
    """A child process that checks grammars. Only for one thread at a time."""

    def __init__(self, facts: ModelFacts):
        greeting = msgspec.msgpack.encode(facts)
        super().__init__("tokenizer_proc.grammar_child", greeting=greeting, limit_signal=signal.SIGXCPU)

    def load(self) -> None:
        """Starts the child, if there is none, and waits until it has loaded the tokenizer. Raises `ChildEndedError`."""
        if self._process is None:
            self.start()

    def start(self) -> ChildProcess:
        process = super().start()
        try:
            process.read(LOAD_TIMEOUT_S)
        except ChildEndedError:
            self._process = None
            raise
        return process

    def check(self, grammar: Grammar, timeout_s: float) -> GrammarCheck:
        """Raises `ChildEndedError`."""
        return msgspec.msgpack.decode(self.ask(msgspec.msgpack.encode(grammar), timeout_s), type=GrammarCheck)


class _Lane:
    """The grammars that wait for the same child."""

    def __init__(self, config: Config, wake: Callable[[], None]):
        self._child = GrammarChild(config.facts)
        self._timeout_s = config.scheduling.grammar_timeout_s
        self._calls: BackgroundCalls[Grammar, GrammarCheck] = BackgroundCalls(
            wake, self._timeout_s, num_threads=1, prepare=self._child.load
        )

    def start(self, grammar: Grammar) -> None:
        self._calls.start(grammar, lambda: self._child.check(grammar, self._timeout_s))

    def close(self) -> None:
        self._child.close()

    def pop_done(self) -> Iterator[tuple[Grammar, GrammarCheck]]:
        for grammar, outcome in self._calls.pop_done():
            is_checked = isinstance(outcome, GrammarCheck)
            yield grammar, outcome if is_checked else GrammarCheck(error=self._explain(grammar.param, outcome))

    def _explain(self, param: str, error: Exception) -> ErrorInfo:
        if isinstance(error, NeverBegunError):
            return grammars_are_busy(self._timeout_s, param)
        if isinstance(error, TimeoutError | ChildTimeoutError):
            return grammar_is_late(self._timeout_s, param)
        if not isinstance(error, ChildEndedError) or error.is_ours:
            log.error("a grammar could not be checked: %s %s", type(error).__name__, error, exc_info=error)
            return ErrorInfo(
                500, f"{param} could not be compiled: a process of the server failed", "server_error", param
            )
        if error.exit_code == -signal.SIGXCPU:
            words = f"takes more than {MAX_CPU_S} s of CPU time to compile: make it simpler"
        else:
            words = f"ended the process that compiled it (exit code {error.exit_code}): make it smaller and less deep"
        return ErrorInfo(400, f"{param} {words}", param=param)


class GrammarChecks:
    """Checks the grammars of requests in the background. Calls `wake` when `pop_done` has results.

    `hold` holds back an abort while its request is being checked, so that it does not overtake the request.
    """

    def __init__(self, config: Config, wake: Callable[[], None]):
        self._wake = wake
        self._closes_objects = not config.http.allow_additional_properties
        self._schemas = _Lane(config, wake)
        self._languages = _Lane(config, wake)
        """Lark and GBNF take longest. They have their own child, so that schemas do not wait for them."""
        self._known: OrderedDict[Grammar, GrammarCheck] = OrderedDict()
        self._ready: list[tuple[Grammar, GrammarCheck]] = []
        self._messages: dict[Grammar, list[UserMsg]] = {}
        """Messages with the same grammar, such as those of all choices of a request, wait for the same check."""
        self._uids: Counter[int] = Counter()
        self._aborts: list[AbortMsg] = []

    def start(self, message: UserMsg) -> None:
        """Starts the check of a message's grammar; `pop_done` yields the outcome."""
        grammar = message.sampling_params.grammar
        assert grammar is not None
        if grammar.closes_objects is None:
            grammar = msgspec.structs.replace(grammar, closes_objects=self._closes_objects)
        self._uids[message.uid] += 1
        messages = self._messages.setdefault(grammar, [])
        messages.append(message)
        if len(messages) > 1:
            return
        known = self._known.get(grammar)
        if known is not None:
            self._known.move_to_end(grammar)
            self._ready.append((grammar, known))
            self._wake()
        else:
            (self._languages if grammar.kind == "lark" else self._schemas).start(grammar)

    def hold(self, message: AbortMsg) -> bool:
        """Holds back an abort if its request is being checked. Returns True if it did."""
        is_here = message.uid in self._uids
        if is_here:
            self._aborts.append(message)
        return is_here

    def pop_done(self) -> Iterator[UserMsg | AbortMsg | UserReply]:
        """Yields messages for the scheduler, with grammars in llguidance's form, and refusals for frontends."""
        done = [*self._ready, *self._schemas.pop_done(), *self._languages.pop_done()]
        self._ready = []
        for grammar, checked in done:
            self._remember(grammar, checked)
            for message in self._messages.pop(grammar):
                self._uids[message.uid] -= 1
                yield _answer(message, checked)
        if done:
            self._uids = +self._uids
            yield from [message for message in self._aborts if message.uid not in self._uids]
            self._aborts = [message for message in self._aborts if message.uid in self._uids]

    def close(self) -> None:
        """Ends the child processes."""
        self._schemas.close()
        self._languages.close()

    def _remember(self, grammar: Grammar, checked: GrammarCheck) -> None:
        """Keeps the outcome for later requests with the same grammar, unless a retry could give another one."""
        if checked.error is None or checked.error.status == 400:
            self._known[grammar] = checked
            if len(self._known) > NUM_KEPT:
                self._known.popitem(last=False)


def _answer(message: UserMsg, checked: GrammarCheck) -> UserMsg | UserReply:
    if checked.error is not None:
        return UserReply(message.uid, message.attempt, "error", stamps=message.stamps, error=checked.error)
    params = msgspec.structs.replace(message.sampling_params, grammar=checked.grammar)
    return msgspec.structs.replace(message, sampling_params=params)
