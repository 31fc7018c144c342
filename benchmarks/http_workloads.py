"""The workloads on which servers are compared through HTTP, taking turns."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from benchmarks.load.batch_client import Server, seconds_of
from benchmarks.load.workloads import LengthRange, Lengths, PlannedRequest, random_prompts

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
