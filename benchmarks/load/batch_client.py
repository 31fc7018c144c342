"""Whole answers from Sluice or from any OpenAI-compatible server: many requests at once, and the time of all.

Answers are not streamed, so that each server is measured by the same, least work of the client.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.load.connection import Target
from benchmarks.load.post_json import post_json
from benchmarks.load.server_facts import ServerUnavailableError
from benchmarks.load.workloads import PlannedRequest


@dataclass(frozen=True)
class Server:
    """`model`: the name by which an OpenAI-compatible server knows its model; empty for Sluice's own /generate."""

    target: Target
    model: str = ""

    def body(self, planned: PlannedRequest) -> dict[str, Any]:
        """Returns the JSON body that asks for exactly `max_tokens` greedy tokens."""
        fields: dict[str, Any] = {
            "prompt": planned.prompt,
            "max_tokens": planned.max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": False,
        }
        return fields | {"model": self.model} if self.model else fields

    @property
    def path(self) -> str:
        return "/v1/completions" if self.model else "/generate"

    def answer(self, planned: PlannedRequest) -> int:
        """Returns the number of tokens of the answer. Raises `ServerUnavailableError` where there is none."""
        answer = post_json(self.target, self.path, self.body(planned))
        return int(answer["usage"]["completion_tokens"])


def seconds_of(server: Server, requests: Sequence[PlannedRequest], concurrency: int) -> float:
    """Returns the seconds until all have their answer, `concurrency` at a time.

    Raises `ServerUnavailableError` where one fails or has another length than was asked for.
    """
    with ThreadPoolExecutor(concurrency) as threads:
        begin_s = time.perf_counter()
        lengths = list(threads.map(server.answer, requests))
        seconds = time.perf_counter() - begin_s
    wrong = [length for length, planned in zip(lengths, requests, strict=True) if length != planned.max_tokens]
    if wrong:
        raise ServerUnavailableError(f"{server.target.origin}: an answer has {wrong[0]} tokens, not what was asked for")
    return seconds
