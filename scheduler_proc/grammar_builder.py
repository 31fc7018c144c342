"""Compiles the grammars of waiting requests beside the main loop."""

import time
from collections.abc import Callable

from messages.config import Config
from messages.errors import ErrorInfo, RequestError
from messages.requests import Grammar
from runtime.background import BackgroundCalls
from runtime.grammars import GrammarCompiler, GrammarError
from runtime.histograms import Histogram
from scheduler_proc.deciding.grammars import RequestGrammar, make_grammar
from scheduler_proc.deciding.requests import PendingReq
from scheduler_proc.deciding.thought_limits import FollowedThought


class GrammarBuilder:
    """`wake` ends the main loop's wait. A grammar that is known is there at once, any other when it has compiled."""

    def __init__(self, config: Config, wake: Callable[[], None]):
        facts = config.facts
        self._vocab_size = facts.vocab_size
        self._eos_token_ids = facts.eos_token_ids
        self._timeout_s = config.scheduling.grammar_timeout_s
        self._compiler = GrammarCompiler(facts.tokenizer_dir, facts.vocab_size, facts.eos_token_ids)
        self._calls: BackgroundCalls[PendingReq, RequestGrammar] = BackgroundCalls(wake, self._timeout_s)
        self.seconds = Histogram("grammar_seconds")
        """What requests have waited for a grammar to compile."""

    def start(self, pending: PendingReq) -> None:
        """Has the grammar of a request made, with its output consumed; `pop_built` returns it."""
        self._calls.start(pending, lambda: self._build(pending))

    def find(self, pending: PendingReq) -> RequestGrammar | None:
        """Returns the grammar of a request without output, if it is known, at once."""
        grammar = pending.sampling_params.grammar
        assert grammar is not None
        if pending.num_output_tokens or None in map(self._compiler.find, _texts_of(grammar)):
            return None
        return self._build(pending)

    def pop_built(self) -> list[tuple[PendingReq, RequestGrammar | ErrorInfo]]:
        """Returns the requests whose grammars are there, or why they cannot be."""
        done = self._calls.pop_done()
        for pending, _ in done:
            self.seconds.add((time.monotonic_ns() - pending.queued_ns) / 1e9)
        return [
            (pending, outcome if isinstance(outcome, RequestGrammar) else self._explain(outcome))
            for pending, outcome in done
        ]

    def _build(self, pending: PendingReq) -> RequestGrammar:
        grammar = pending.sampling_params.grammar
        assert grammar is not None
        matcher = self._compiler.compile(grammar.text) if grammar.text else None
        output_ids = pending.token_ids[pending.num_prompt_tokens :]
        tokenizer, params = self._compiler.tokenizer(), pending.sampling_params
        limit, thought = grammar.limit, None
        if limit is not None:
            thought = FollowedThought(limit, self._compiler.compile(limit.text), output_ids)
        return make_grammar(matcher, tokenizer, params, output_ids, self._eos_token_ids, self._vocab_size, thought)

    def _explain(self, error: Exception) -> ErrorInfo:
        if isinstance(error, RequestError):
            return error.info
        if isinstance(error, TimeoutError):
            return ErrorInfo(
                400, f"the grammar took longer than {self._timeout_s:g} s to compile (--grammar-timeout-s)"
            )
        if isinstance(error, GrammarError):
            return ErrorInfo(400, f"the grammar cannot be used: {error}")
        return ErrorInfo(500, f"the grammar could not be compiled: {type(error).__name__}", "server_error")


def _texts_of(grammar: Grammar) -> list[str]:
    """Returns what has to be compiled of a grammar in llguidance's form."""
    return [text for text in (grammar.text, grammar.limit and grammar.limit.text) if text]
