"""What the load generator itself costs: measured against a trivial server in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

from benchmarks.load.connection import Target, parse_url
from benchmarks.load.drive import Limits, Load
from benchmarks.load.report import Report, make_report
from benchmarks.load.workloads import LengthRange, Lengths, SamplingFields, random_prompts

LENGTHS = Lengths(input=LengthRange(128, 128), output=LengthRange(200, 200))
MAX_SECONDS = 60.0


@contextmanager
def paced_server(step_ms: float) -> Iterator[Target]:
    """A `PacedServer` in its own process, stopped at the end."""
    command = [sys.executable, "-m", "benchmarks.load.paced_server", "--step-ms", str(step_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Target(*parse_url(process.stdout.readline().strip()))
        finally:
            process.communicate(timeout=10)


def check_client(concurrency: int, step_ms: float = 5.0) -> Report:
    """Returns the report of two rounds of `concurrency` streams that get a token each step of `step_ms`."""
    with paced_server(step_ms) as target:
        load = Load(target, SamplingFields(), Limits(2 * concurrency, MAX_SECONDS))
        requests = random_prompts(vocab_size=2048, lengths=LENGTHS, num_shared=0, seed=0)
        uvloop.run(load.closed_loop(requests, concurrency))
        return make_report(load.measurement)
