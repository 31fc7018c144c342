"""Compiles the grammars of waiting requests in background threads."""

import contextlib
import time
from collections.abc import Callable

from messages.config.server import Config
from messages.errors import ErrorInfo, RequestError
from messages.ring.requests import Grammar
from runtime.background import BackgroundCalls, NeverBegunError
from runtime.grammars import GrammarCompiler, GrammarError, grammar_is_late, grammars_are_busy
from runtime.histograms import Histogram
from scheduler_proc.deciding.requests import PendingReq
from scheduler_proc.deciding.sampling.endings import end_tokens_of
from scheduler_proc.deciding.sampling.grammar_time import GrammarTime, TimeAccount
from scheduler_proc.deciding.sampling.grammars import RequestGrammar, make_grammar
from scheduler_proc.deciding.sampling.thought_limits import FollowedThought


class GrammarBuilder:
    """Compiles grammars, or finds compiled ones at once. `wake` ends the main loop's wait."""

    def __init__(self, config: Config, wake: Callable[[], None]):
        facts = config.facts
        self._vocab_size = facts.vocab_size
        self._eos_token_ids = facts.eos_token_ids
        self._timeout_s = config.scheduling.grammar_timeout_s
        self._compiler = GrammarCompiler(facts.tokenizer_dir, facts.vocab_size, facts.eos_token_ids)
        self._calls: BackgroundCalls[PendingReq, RequestGrammar] = BackgroundCalls(
            wake, self._timeout_s, prepare=self._load
        )
        self._time = GrammarTime()
        self.seconds = Histogram("grammar_seconds")
        """The time that requests have waited for their grammars."""

    def start(self, pending: PendingReq) -> None:
        """Starts to compile the grammar of a request and to consume its output; `pop_built` returns it."""
        account = self._account_of(pending)
        self._calls.start(pending, lambda: self._build(pending, account))

    def find(self, pending: PendingReq) -> RequestGrammar | None:
        """Returns the grammar of a request without output if it is already compiled."""
        grammar = pending.sampling_params.grammar
        assert grammar is not None
        if pending.num_output_tokens or None in map(self._compiler.find, _texts_of(grammar)):
            return None
        return self._build(pending, self._account_of(pending))

    def pop_built(self) -> list[tuple[PendingReq, RequestGrammar | ErrorInfo]]:
        """Returns the requests whose grammars have been compiled, or have failed to compile, since the last call."""
        done = self._calls.pop_done()
        for pending, _ in done:
            self.seconds.add((time.monotonic_ns() - pending.queued_ns) / 1e9)
        return [
            (pending, outcome if isinstance(outcome, RequestGrammar) else self._explain(outcome))
            for pending, outcome in done
        ]

    def _load(self) -> None:
        with contextlib.suppress(GrammarError):  # compiling reports it
            self._compiler.tokenizer()

    def _account_of(self, pending: PendingReq) -> TimeAccount:
        """Returns the account of the HTTP request: all its prompts and choices have the same time of receipt."""
        return self._time.account_of(pending.stamps.received_ns)

    def _build(self, pending: PendingReq, account: TimeAccount) -> RequestGrammar:
        grammar = pending.sampling_params.grammar
        assert grammar is not None
        matcher = self._compiler.compile(grammar.text) if grammar.text else None
        output_ids = pending.token_ids[pending.num_prompt_tokens :]
        tokenizer = self._compiler.tokenizer()
        end_tokens = end_tokens_of(pending.sampling_params, self._eos_token_ids)
        thought = None
        if grammar.limit is not None:
            thought = FollowedThought(grammar.limit, self._compiler.compile(grammar.limit.text), output_ids)
        return make_grammar(matcher, tokenizer, output_ids, self._vocab_size, end_tokens, account, thought)

    def _explain(self, error: Exception) -> ErrorInfo:
        if isinstance(error, RequestError):
            return error.info
        if isinstance(error, NeverBegunError):
            return grammars_are_busy(self._timeout_s)
        if isinstance(error, TimeoutError):
            return grammar_is_late(self._timeout_s)
        if isinstance(error, GrammarError):
            return ErrorInfo(400, f"the grammar cannot be used: {error}")
        return ErrorInfo(500, f"the grammar could not be compiled: {type(error).__name__}", "server_error")


def _texts_of(grammar: Grammar) -> list[str]:
    """Returns the texts to compile for a grammar in llguidance's form."""
    return [text for text in (grammar.text, grammar.limit and grammar.limit.text) if text]
