"""The cost of an idle server: start-up time, memory of each process, CPU time and wake-ups.

    python -m benchmarks.bench_footprint --model DIR

Idle cost is measured after the start and again after a load of 64 streams. Finally SIGTERM must end the server with
exit code 0 and leave no process behind.
"""

import argparse
import sys
import time
from pathlib import Path

import msgspec
import uvloop

from benchmarks.load.answer import OK
from benchmarks.load.connection import Target
from benchmarks.load.drive import Limits, Load
from benchmarks.load.report import Report, format_report, make_report
from benchmarks.load.server_facts import ServerUnavailableError, ask_server
from benchmarks.load.workloads import LengthRange, Lengths, SamplingFields, random_prompts
from benchmarks.result_file import write_result
from benchmarks.server_process import ProcessMemory, ServerProcess, TreeActivity, is_running, memory, tree_pids, watch
from messages.errors import SluiceError

NUM_STREAMS = 64
SETTLE_S = 2.0
"""Pause before idle is measured: the last beats and log lines of what was before do not belong to it."""


class Footprint(msgspec.Struct, frozen=True):
    """Everything measured. `log_until_ready`: the launcher's lines with the seconds at which they came."""

    seconds_to_ready: float
    log_until_ready: list[tuple[float, str]]
    memory_before: list[ProcessMemory]
    idle_before: TreeActivity
    load: Report
    memory_after: list[ProcessMemory]
    idle_after: TreeActivity
    seconds_to_stop: float
    exit_code: int
    num_left_behind: int


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; returns 0, or 1 if the server does not start, serve or stop as it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="as for launch.py (default: the bundled model)")
    parser.add_argument(
        "--idle-seconds", type=float, default=10.0, help="duration of the idle measurement (default: 10)"
    )
    parser.add_argument("--start-timeout-s", type=float, default=300.0, help="longest start (default: 300)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    parser.add_argument("launch_flags", nargs="*", metavar="-- FLAG", help="more flags for launch.py, after --")
    options = parser.parse_args(arguments)
    flags = [*(["--model", options.model] if options.model else []), *options.launch_flags]
    try:
        footprint = measure(flags, options.idle_seconds, options.start_timeout_s)
    except SluiceError as error:
        print(f"bench_footprint: {error}", file=sys.stderr)
        return 1
    print_footprint(footprint)
    if options.json:
        write_result(options.json, "footprint", {"flags": flags, "footprint": footprint})
    return 0 if footprint.exit_code == 0 and not footprint.num_left_behind else 1


def measure(flags: list[str], idle_s: float, start_timeout_s: float) -> Footprint:
    """Starts a server with `flags`, measures it and stops it. Raises `ServerUnavailableError`."""
    server = ServerProcess(flags)
    try:
        target = server.wait_until_ready(start_timeout_s)
        ready_s = time.monotonic() - server.begin_s
        log = list(server.log)
        time.sleep(SETTLE_S)
        memory_before, idle_before = memory(server.pid), watch(server.pid, idle_s)
        report = run_streams(target)
        time.sleep(SETTLE_S)
        memory_after, idle_after = memory(server.pid), watch(server.pid, idle_s)
        pids = tree_pids(server.pid)
        begin_stop_s = time.monotonic()
        exit_code = server.stop()
        return Footprint(
            seconds_to_ready=round(ready_s, 3),
            log_until_ready=log,
            memory_before=memory_before,
            idle_before=idle_before,
            load=report,
            memory_after=memory_after,
            idle_after=idle_after,
            seconds_to_stop=round(time.monotonic() - begin_stop_s, 3),
            exit_code=exit_code,
            num_left_behind=sum(is_running(pid) for pid in pids),
        )
    finally:
        server.stop()


def run_streams(target: Target) -> Report:
    """Returns the report of `NUM_STREAMS` streams at once. Raises `ServerUnavailableError` if one fails."""
    facts = ask_server(target)
    length = LengthRange(facts.max_model_len // 4, facts.max_model_len // 4)
    load = Load(target, SamplingFields(ignore_eos=True), Limits(NUM_STREAMS, max_seconds=120.0))
    requests = random_prompts(facts.vocab_size, Lengths(length, length), num_shared=0, seed=0)
    uvloop.run(load.closed_loop(requests, NUM_STREAMS))
    failed = [result for result in load.measurement.results if result.outcome != OK]
    if failed:
        raise ServerUnavailableError(f"{len(failed)} of {NUM_STREAMS} streams: {failed[0].outcome}: {failed[0].detail}")
    return make_report(load.measurement)


def print_footprint(footprint: Footprint) -> None:
    print(f"ready after {footprint.seconds_to_ready:.2f} s:")
    for second, line in footprint.log_until_ready:
        print(f"  {second:7.2f} s  {line}")
    _print_state("idle, after the start", footprint.memory_before, footprint.idle_before)
    print(f"\n{NUM_STREAMS} streams:\n{format_report(footprint.load)}")
    _print_state("idle, after the load", footprint.memory_after, footprint.idle_after)
    print(
        f"\nSIGTERM: exit code {footprint.exit_code} after {footprint.seconds_to_stop:.2f} s, "
        f"{footprint.num_left_behind} processes left behind"
    )


def _print_state(title: str, processes: list[ProcessMemory], idle: TreeActivity) -> None:
    print(f"\n{title}: {idle.percent_of_a_core:.2f} % of a core, {idle.wakeups_per_s:.1f} wake-ups/s")
    print(f"  {'process':<24}{'pid':>8}{'RSS MiB':>10}{'PSS MiB':>10}{'threads':>9}")
    for process in processes:
        print(
            f"  {process.command:<24}{process.pid:>8}{process.rss_mib:>10.1f}{process.pss_mib:>10.1f}"
            f"{process.num_threads:>9}"
        )
    rss, pss = (sum(process.rss_mib for process in processes), sum(process.pss_mib for process in processes))
    print(f"  {'all':<24}{'':>8}{rss:>10.1f}{pss:>10.1f}")


if __name__ == "__main__":
    raise SystemExit(main())
