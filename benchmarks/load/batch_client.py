"""Workloads for comparing servers over HTTP in turns: whole answers of Sluice or any OpenAI-compatible server.

Answers are not streamed, so the client does the same minimal work for each server.
"""

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from benchmarks.load.connection import Target
from benchmarks.load.server_facts import ServerUnavailableError, post_json
from benchmarks.load.workloads import LengthRange, Lengths, PlannedRequest, random_prompts


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
        """Returns the number of tokens of the answer. Raises `ServerUnavailableError` if there is none."""
        answer = post_json(self.target, self.path, self.body(planned))
        return int(answer["usage"]["completion_tokens"])


def seconds_of(server: Server, requests: Sequence[PlannedRequest], concurrency: int) -> float:
    """Returns the seconds until all have their answer, `concurrency` at a time.

    Raises `ServerUnavailableError` if one fails or has the wrong length.
    """
    with ThreadPoolExecutor(concurrency) as threads:
        begin_s = time.perf_counter()
        lengths = list(threads.map(server.answer, requests))
        seconds = time.perf_counter() - begin_s
    wrong = [length for length, planned in zip(lengths, requests, strict=True) if length != planned.max_tokens]
    if wrong:
        raise ServerUnavailableError(f"{server.target.origin}: an answer has {wrong[0]} tokens, not what was asked for")
    return seconds


REST_S = 1.0
"""Threads of a server that has just answered may still spin, and would take the next one's cores."""


@dataclass(frozen=True)
class Workload:
    """`num_requests` prompts of `num_input` tokens, the first `num_shared` alike; `concurrency` run at a time."""

    about: str
    num_requests: int
    concurrency: int
    num_input: int
    num_output: int
    num_shared: int = 0
    unit: str = "output tok/s"
    goal: float = 1.0
    """How many times as fast as a peer this is to be."""

    def requests(self, vocab_size: int, seed: int) -> list[PlannedRequest]:
        lengths = Lengths(LengthRange(self.num_input, self.num_input), LengthRange(self.num_output, self.num_output))
        return list(islice(random_prompts(vocab_size, lengths, self.num_shared, seed), self.num_requests))

    def figure(self, seconds: float) -> float:
        """Returns what the time means, in `unit`."""
        if self.unit == "s":
            return seconds
        num_tokens = self.num_input if self.unit == "prompt tok/s" else self.num_output
        return self.num_requests * num_tokens / seconds


WORKLOADS = {
    "W1": Workload("one stream", 1, 1, 32, 128, goal=1.25),
    "W2": Workload("32 streams at once", 32, 32, 128, 128, goal=1.25),
    "W3": Workload("8 prompts at once", 8, 8, 900, 4, unit="prompt tok/s", goal=1.1),
    "W4": Workload("32 requests that share a prefix, 8 at a time", 32, 8, 800, 32, 768, unit="s", goal=1.4),
    "W5": Workload("8 prompts, one at a time", 8, 1, 900, 4, unit="prompt tok/s", goal=1.15),
}
LONG_WORKLOADS = {
    "W6": Workload("the first token of a prompt", 1, 1, 4000, 1, unit="s", goal=1.2),
    "W7": Workload("the first token of a prompt", 1, 1, 16000, 1, unit="s", goal=1.2),
}
"""Only models of a long context take them, and a CPU a long time."""


def measure(
    servers: dict[str, Server],
    names: Sequence[str],
    rounds: int,
    vocab_size: int,
    seed: int = 0,
    rest_s: float = REST_S,
) -> list[dict]:
    """Returns a line for each workload: the figures of each server in each round, and their medians.

    Who begins changes from round to round.
    """
    workloads = {**WORKLOADS, **LONG_WORKLOADS}
    figures = {name: {server: [] for server in servers} for name in names}
    for round_index in range(-1, rounds):  # the first is a warm-up
        for index, name in enumerate(names):
            workload = workloads[name]
            turns = list(servers.items())
            for server_name, server in turns if round_index % 2 else reversed(turns):
                requests = workload.requests(vocab_size, seed + 1000 * (round_index + 1) + index)
                time.sleep(rest_s)
                seconds = seconds_of(server, requests, workload.concurrency)
                if round_index >= 0:
                    figures[name][server_name].append(workload.figure(seconds))
    return [
        {
            "name": name,
            "about": workloads[name].about,
            "tokens": f"{workloads[name].num_input} + {workloads[name].num_output}",
            "unit": workloads[name].unit,
            "goal": workloads[name].goal,
            "rounds": figures[name],
            "median": {server: statistics.median(values) for server, values in figures[name].items()},
        }
        for name in names
    ]
