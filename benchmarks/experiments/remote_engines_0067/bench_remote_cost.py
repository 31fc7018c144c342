"""The extra cost of a token from an engine that joined over tcp, compared with a local engine.

    python -m benchmarks.experiments.remote_engines_0067.bench_remote_cost --streams 1 32 --rounds 4 --json FILE

Three servers take turns; their schedulers' steps only wait (`benchmarks/paced_scheduler.py`). The scheduler of the
first is local (ipc), that of the second joined over tcp with CURVE, and that of the third joined from a time namespace
whose clock is an hour ahead (`unshare --time`, as root), so all timestamps are shifted as between two machines.
Everything runs on this machine, so network time is not included.
"""

import argparse
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean, median

import msgspec

from benchmarks.bench_ring_cost import START_TIMEOUT_S, RingCost, measure
from benchmarks.load.connection import Target
from benchmarks.result_file import ROOT, write_result
from benchmarks.server_process import ServerProcess, server_with_scheduler
from messages.errors import SluiceError

IPC, TCP, TCP_SHIFTED = "ipc", "tcp", "tcp, clock an hour ahead"
BACK = "of it outside of the scheduler"
"""The time of a first token; only the way back between engine and ring is in it."""

SCHEDULERS = ("benchmarks.paced_scheduler", "scheduler_proc")
ENDS = ("extras.remote.proxy", "benchmarks.experiments.remote_engines_0067.paced_joiner")
OTHER_CLOCK = ["unshare", "--time", "--monotonic", "3600"]


class Side(msgspec.Struct, frozen=True):
    """Means over the rounds, by process for CPU time; of latencies the median over the rounds.

    `cpu_us_more` is what proxy and joiner take for a token, `latency_ms_more` how much later than over ipc a frame of
    tokens arrives, by the medians of each turn.
    """

    num_streams: int
    side: str
    output_tokens_per_s: float
    cpu_us_per_token: dict[str, float]
    cpu_us_more: float
    latency_ms: float
    latency_ms_more: float


class Turned(msgspec.Struct, frozen=True):
    """A server and the additional processes that are measured."""

    server: ServerProcess
    target: Target
    others: tuple[int, ...] = ()


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; returns 0, or 1 if a server cannot be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32], help="streams at a time (default: 1 32)")
    parser.add_argument("--step-ms", type=float, default=5.0, help="time of a step (default: 5)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each turn (default: 5)")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each side (default: 4)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    turns: dict[tuple[int, str], list[RingCost]] = {}
    try:
        with ExitStack() as stack:
            sides = start_sides(stack, options.step_ms)
            for number in range(options.rounds):
                for name in rotated(list(sides), number):
                    one = sides[name]
                    for streams in options.streams:
                        cost = measure(one.server, one.target, streams, options.step_ms, options.seconds, one.others)
                        turns.setdefault((streams, name), []).append(cost)
    except SluiceError as error:
        print(f"bench_remote_cost: {error}", file=sys.stderr)
        return 1
    found = [compare(turns, streams, name) for streams, name in sorted(turns)]
    for one in found:
        print(
            f"{one.num_streams:3} streams, {one.side:24}: {one.cpu_us_more:6.1f} CPU µs a token and "
            f"{one.latency_ms_more:6.3f} ms a frame more; {one.output_tokens_per_s:,.0f} tokens/s"
        )
    if options.json:
        settings = {name: getattr(options, name) for name in ("step_ms", "seconds", "rounds")}
        write_result(options.json, "remote_cost", {**settings, "sides": found})
    return 0


def start_sides(stack: ExitStack, step_ms: float) -> dict[str, Turned]:
    """Starts a server for each side; the last side is left out where this user may not have another clock."""
    steps = "benchmarks.paced_scheduler", [], START_TIMEOUT_S, ["--step-ms", str(step_ms)]
    sides = {IPC: Turned(*stack.enter_context(server_with_scheduler(*steps)))}
    sides[TCP] = stack.enter_context(server_with_joiner(step_ms, []))
    if can_have_other_clock():
        sides[TCP_SHIFTED] = stack.enter_context(server_with_joiner(step_ms, OTHER_CLOCK))
    return sides


def can_have_other_clock() -> bool:
    """Whether this user may make a time namespace."""
    if not shutil.which("unshare"):
        return False
    return subprocess.run([*OTHER_CLOCK, "true"], capture_output=True, check=False).returncode == 0


@contextmanager
def server_with_joiner(step_ms: float, prefix: list[str]) -> Iterator[Turned]:
    """A ready server whose only engine has joined; `prefix` is what the joiner is started with."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    server = ServerProcess(["--data-parallel", "0", "--remote-engines", address])
    joiner = None
    try:
        server.wait_until_listening(START_TIMEOUT_S)
        join = [
            sys.executable,
            "-m",
            "benchmarks.experiments.remote_engines_0067.paced_joiner",
            str(step_ms),
            address,
            "--once",
        ]
        joiner = subprocess.Popen([*prefix, *join, "--key-file", str(server.run_dir.join_keys)], cwd=ROOT)
        yield Turned(server, server.wait_until_ready(START_TIMEOUT_S), (joiner.pid,))
    finally:
        server.stop()
        if joiner is not None:
            joiner.wait(START_TIMEOUT_S)  # it ends with the head


def compare(turns: dict[tuple[int, str], list[RingCost]], num_streams: int, name: str) -> Side:
    """Returns the figures of one side, compared with `IPC` in the same rounds."""
    costs, base = turns[num_streams, name], turns[num_streams, IPC]
    processes = [process for process in costs[0].cpu_us_per_token if process not in SCHEDULERS]
    cpu_us = {process: round(mean(cost.cpu_us_per_token[process] for cost in costs), 2) for process in processes}
    latency_ms, base_ms = ([cost.latencies[BACK].p50_ms for cost in of_side] for of_side in (costs, base))
    more_ms = (here - there for here, there in zip(latency_ms, base_ms, strict=True))
    return Side(
        num_streams=num_streams,
        side=name,
        output_tokens_per_s=round(mean(cost.output_tokens_per_s for cost in costs), 1),
        cpu_us_per_token=cpu_us,
        cpu_us_more=round(sum(cpu_us.get(process, 0.0) for process in ENDS), 2),
        latency_ms=round(median(latency_ms), 3),
        latency_ms_more=round(median(more_ms), 3),
    )


def rotated(names: list[str], number: int) -> list[str]:
    """Returns the names for a round: the first name changes every round, the direction every second round."""
    begin = number % len(names)
    names = names[begin:] + names[:begin]
    return names[::-1] if number % 2 else names


if __name__ == "__main__":
    raise SystemExit(main())
