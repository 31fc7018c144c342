"""Checks the grammars of requests in child processes, while the tokenizer serves other requests."""

import signal
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator

import msgspec

from messages.config.server import Config, ModelFacts
from messages.errors import ErrorInfo
from messages.ring.replies import UserReply
from messages.ring.requests import AbortMsg, Grammar, UserMsg
from runtime.background import BackgroundCalls, NeverBegunError
from runtime.grammars import NUM_KEPT, grammars_are_busy
from tokenizer_proc.child_process import ChildEndedError, ChildProcess, ChildTimeoutError
from tokenizer_proc.grammar_child import MAX_CPU_S, Checked


class GrammarChild:
    """A process that checks grammars, started when the first one arrives. Only for one thread at a time."""

    def __init__(self, facts: ModelFacts):
        self._facts = msgspec.json.encode(facts)
        self._process: ChildProcess | None = None

    def check(self, grammar: Grammar, timeout_s: float) -> Checked:
        """Raises `ChildEndedError`; the next grammar then gets a new child.

        A child that may have been killed for another reason, or while it had nothing to do, is replaced once.
        """
        try:
            return self._ask(grammar, timeout_s)
        except ChildTimeoutError:
            raise
        except ChildEndedError as error:
            if error.exit_code == -signal.SIGXCPU:
                raise
        return self._ask(grammar, timeout_s)

    def _ask(self, grammar: Grammar, timeout_s: float) -> Checked:
        if self._process is None:
            self._process = ChildProcess("tokenizer_proc.grammar_child")
            self._process.send(self._facts)
        try:
            reply = self._process.ask(msgspec.json.encode(grammar), timeout_s)
        except ChildEndedError:
            self._process = None
            raise
        return msgspec.json.decode(reply, type=Checked)

    @property
    def pid(self) -> int | None:
        return self._process and self._process.pid

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.end()


class _Lane:
    """Grammars that wait for the same child."""

    def __init__(self, config: Config, wake: Callable[[], None]):
        self._child = GrammarChild(config.facts)
        self._timeout_s = config.scheduling.grammar_timeout_s
        self._calls: BackgroundCalls[Grammar, Checked] = BackgroundCalls(wake, self._timeout_s, num_threads=1)

    def start(self, grammar: Grammar) -> None:
        self._calls.start(grammar, lambda: self._child.check(grammar, self._timeout_s))

    def close(self) -> None:
        self._child.close()

    def pop_done(self) -> Iterator[tuple[Grammar, Checked]]:
        for grammar, outcome in self._calls.pop_done():
            is_checked = isinstance(outcome, Checked)
            yield grammar, outcome if is_checked else Checked(error=self._explain(grammar.param, outcome))

    def _explain(self, param: str, error: Exception) -> ErrorInfo:
        if isinstance(error, NeverBegunError):
            return grammars_are_busy(self._timeout_s, param)
        if isinstance(error, TimeoutError | ChildTimeoutError):
            words = f"took longer than {self._timeout_s:g} s to compile: make it simpler"
        elif not isinstance(error, ChildEndedError):
            return ErrorInfo(500, f"{param} could not be compiled: {type(error).__name__}", "server_error", param)
        elif error.exit_code == -signal.SIGXCPU:
            words = f"takes more than {MAX_CPU_S} s of CPU time to compile: make it simpler"
        else:
            words = f"ended the process that compiled it (exit code {error.exit_code}): make it smaller and less deep"
        return ErrorInfo(400, f"{param} {words}", param=param)


class GrammarChecks:
    """Checks the grammars of requests in the background; `wake` is called when results are ready for `pop_done`.

    `hold` holds an abort back while its request is being checked, so that it does not overtake the request.
    """

    def __init__(self, config: Config, wake: Callable[[], None]):
        self._wake = wake
        self._schemas = _Lane(config, wake)
        self._languages = _Lane(config, wake)
        """Lark and GBNF, which take longest, have their own child: no schema waits for them."""
        self._known: OrderedDict[Grammar, Checked] = OrderedDict()
        self._ready: list[tuple[Grammar, Checked]] = []
        self._messages: dict[Grammar, list[UserMsg]] = {}
        """Messages with the same grammar, such as those of all choices of a request, wait for the same check."""
        self._uids: Counter[int] = Counter()
        self._aborts: list[AbortMsg] = []

    def start(self, message: UserMsg) -> None:
        """Starts the check of a message's grammar; `pop_done` yields the outcome."""
        grammar = message.sampling_params.grammar
        assert grammar is not None
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
        """Holds an abort back if its request is being checked; returns whether it did."""
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

    def _remember(self, grammar: Grammar, checked: Checked) -> None:
        """Keeps the outcome for later requests with the same grammar, unless a retry could give another one."""
        if checked.error is None or checked.error.status == 400:
            self._known[grammar] = checked
            if len(self._known) > NUM_KEPT:
                self._known.popitem(last=False)


def _answer(message: UserMsg, checked: Checked) -> UserMsg | UserReply:
    if checked.error is not None:
        return UserReply(message.uid, message.attempt, "error", stamps=message.stamps, error=checked.error)
    params = msgspec.structs.replace(message.sampling_params, grammar=checked.grammar)
    return msgspec.structs.replace(message, sampling_params=params)
