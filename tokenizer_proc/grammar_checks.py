"""The grammars of requests, checked in child processes while the tokenizer goes on."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator

import msgspec

from messages.config import Config, ModelFacts
from messages.errors import ErrorInfo
from messages.replies import UserReply
from messages.requests import AbortMsg, Grammar, UserMsg
from runtime.background import BackgroundCalls, NeverBegunError
from runtime.grammars import NUM_KEPT, grammars_are_busy
from tokenizer_proc.grammar_child import MAX_CPU_S, Checked, read_frame, write_frame


class ChildEndedError(Exception):
    """The child has ended instead of replying; its exit code is the only argument."""


class GrammarChild:
    """A process that checks grammars, started when it is needed. Only for one thread at a time."""

    def __init__(self, facts: ModelFacts):
        self._facts = facts
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, grammar: Grammar, timeout_s: float) -> Checked:
        """Raises `TimeoutError`, and `ChildEndedError`; the next grammar then gets a new child.

        A child that may have been killed for another reason, or while it had nothing to do, is replaced once.
        """
        try:
            return self._ask(grammar, timeout_s)
        except ChildEndedError as error:
            if error.args[0] == -signal.SIGXCPU:
                raise
        return self._ask(grammar, timeout_s)

    def _ask(self, grammar: Grammar, timeout_s: float) -> Checked:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        has_reply, has_timed_out = threading.Event(), threading.Event()

        def kill() -> None:
            if not has_reply.is_set():
                has_timed_out.set()
                process.kill()

        timer = threading.Timer(timeout_s, kill)
        timer.start()
        try:
            write_frame(process.stdin, msgspec.json.encode(grammar))
            body = read_frame(process.stdout)
        except BrokenPipeError:
            body = None
        has_reply.set()
        timer.cancel()
        if body is not None:
            return msgspec.json.decode(body, type=Checked)
        code = process.wait()
        self.close()
        raise TimeoutError if has_timed_out.is_set() else ChildEndedError(code)

    @property
    def pid(self) -> int | None:
        return self._process and self._process.pid

    def close(self) -> None:
        """Ends the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tokenizer_proc.grammar_child", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self._process.stdin is not None
        write_frame(self._process.stdin, msgspec.json.encode(self._facts))
        return self._process


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
        if isinstance(error, TimeoutError):
            words = f"took longer than {self._timeout_s:g} s to compile (--grammar-timeout-s): make it simpler"
            return ErrorInfo(400, f"{param} {words}", param=param)
        if isinstance(error, ChildEndedError) and error.args[0] == -signal.SIGXCPU:
            words = f"takes more than {MAX_CPU_S} s of computing to compile: make it simpler"
            return ErrorInfo(400, f"{param} {words}", param=param)
        if isinstance(error, ChildEndedError):
            words = f"ended the process that compiled it (exit code {error.args[0]}): make it smaller and less deep"
            return ErrorInfo(400, f"{param} {words}", param=param)
        return ErrorInfo(500, f"{param} could not be compiled: {type(error).__name__}", "server_error", param)


class GrammarChecks:
    """Checks the grammars of requests beside the main loop, whose wait `wake` ends.

    While a request is here, an abort of it is too (`keep`), so that it does not overtake the request.
    """

    def __init__(self, config: Config, wake: Callable[[], None]):
        self._wake = wake
        self._schemas = _Lane(config, wake)
        self._languages = _Lane(config, wake)
        """For Lark and GBNF, which take longest: no schema waits for one of them."""
        self._known: OrderedDict[Grammar, Checked] = OrderedDict()
        self._ready: list[tuple[Grammar, Checked]] = []
        self._messages: dict[Grammar, list[UserMsg]] = {}
        """Messages with the same grammar, such as those of all choices of a request, wait for the same check."""
        self._uids: Counter[int] = Counter()
        self._aborts: list[AbortMsg] = []

    def start(self, message: UserMsg) -> None:
        """Has the grammar of a message checked; `pop_done` yields what becomes of it."""
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

    def keep(self, message: AbortMsg) -> bool:
        """Keeps the abort back where its request is here; returns whether it is."""
        is_here = message.uid in self._uids
        if is_here:
            self._aborts.append(message)
        return is_here

    def pop_done(self) -> Iterator[UserMsg | AbortMsg | UserReply]:
        """Yields what goes to the scheduler, with grammars in llguidance's form, and the refusals for frontends."""
        done = [*self._ready, *self._schemas.pop_done(), *self._languages.pop_done()]
        self._ready = []
        for grammar, checked in done:
            self._note(grammar, checked)
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

    def _note(self, grammar: Grammar, checked: Checked) -> None:
        """Keeps the outcome for the next request with the same grammar, unless it may be another one then."""
        if checked.error is None or checked.error.status == 400:
            self._known[grammar] = checked
            if len(self._known) > NUM_KEPT:
                self._known.popitem(last=False)


def _answer(message: UserMsg, checked: Checked) -> UserMsg | UserReply:
    if checked.error is not None:
        return UserReply(message.uid, message.attempt, "error", stamps=message.stamps, error=checked.error)
    params = msgspec.structs.replace(message.sampling_params, grammar=checked.grammar)
    return msgspec.structs.replace(message, sampling_params=params)
