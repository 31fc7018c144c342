"""Limits what the holders of keys ask for, and counts what they get."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from extras.keys.ledger import KeyUsage, Ledger
from extras.keys.limits import make_headers, make_refusal
from extras.keys.table import KeyTable
from frontend.requests.costs import estimate_prompts
from frontend.requests.generation import Generation
from frontend.requests.prompt_request import PromptRequest
from frontend.requests.trace import RequestTrace
from messages.ring.replies import Usage

SERVER_ERROR = 500


class Entered(NamedTuple):
    """A request that runs: the tokens that were charged, and the number of the prompt of each choice."""

    num_tokens: int
    prompts: tuple[int, ...]


class Meter:
    """Requests are counted when their response is over. One that the server has failed (5xx) costs nothing."""

    def __init__(self, table: KeyTable, ledger: Ledger):
        self.table = table
        self.ledger = ledger
        self._open: dict[RequestTrace, Entered] = {}

    def enter(self, trace: RequestTrace, requests: Sequence[PromptRequest]) -> None:
        """Lets a request of a key in. Raises `LimitedError` if the key has reached a limit."""
        key = trace.client.key
        entry = self.table.entries.get(key)
        if entry is None:
            return
        num_tokens = estimate_prompts([request._replace(num_choices=1) for request in requests])
        account, is_allowed = self.ledger.enter(key, entry, num_tokens)
        trace.limit_headers[:] = make_headers(account)
        if not is_allowed:
            raise make_refusal(key, entry, account, num_tokens)
        prompts = [index for index, request in enumerate(requests) for _ in range(request.num_choices)]
        self._open[trace] = Entered(num_tokens, tuple(prompts))

    def leave(self, trace: RequestTrace) -> None:
        """Counts what a request has used. If its client has left, it counts with the tokens that have arrived here."""
        entered = self._open.pop(trace, None)
        if entered is None:
            return
        seconds = (time.monotonic_ns() - trace.received_ns) / 1e9
        used = KeyUsage()
        if trace.shown_status < SERVER_ERROR:
            used = _sum_up(trace.generations, entered.prompts)._replace(requests=1, seconds=seconds)
        key = trace.client.key
        self.ledger.leave(key, self.table.entries.get(key), used, entered.num_tokens)


def _sum_up(choices: Sequence[Generation], prompts: Sequence[int]) -> KeyUsage:
    """Returns the tokens of a request. A prompt counts once, regardless of its number of choices."""
    by_prompt: dict[int, tuple[int, int]] = {}
    num_output = 0
    for choice in choices:
        usage = choice.final.usage if choice.final is not None else choice.prompt_usage or Usage()
        num_prompt, num_cached = by_prompt.get(prompts[choice.index], (0, 0))
        by_prompt[prompts[choice.index]] = max(num_prompt, usage.prompt_tokens), max(num_cached, usage.cached_tokens)
        num_output += len(choice.output_ids) if choice.final is None else usage.completion_tokens
    num_prompt, num_cached = map(sum, zip(*by_prompt.values(), strict=True)) if by_prompt else (0, 0)
    return KeyUsage(prompt_tokens=num_prompt, cached_tokens=num_cached, output_tokens=num_output)
