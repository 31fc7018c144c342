"""How long clients wait when a process is killed or replaced by a command, for each process.

    python -m benchmarks.bench_recovery --kills 5 --json FILE

Streams run throughout. After each SIGKILL, measures the time until HTTP answers, until the process serves again, and
until a request sent at once (and retried until admitted) gets its first token; and the pause of the running streams:
the longest time without any token, and the longest gap of one stream. The scheduler's pause is split by the phases that
it reports during its start. At the end, each process is replaced by a command. With several engines, the others
continue the requests of the one that died:

    python -m benchmarks.bench_recovery --processes scheduler scheduler-2 --json FILE -- --data-parallel 2
"""

import argparse
import asyncio
import http.client
import itertools
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks.load.answer import OK, StreamResult
from benchmarks.load.connection import ConnectionPool, Target
from benchmarks.load.drive import Limits, Load
from benchmarks.load.server_facts import ServerUnavailableError, ask_server
from benchmarks.load.workloads import PlannedRequest, SamplingFields
from benchmarks.result_file import write_result
from benchmarks.server_process import ServerProcess, started_server
from messages.control.admin import Done, RestartProcess
from messages.control.processes import SUCCESSOR
from messages.engine_names import SCHEDULER
from messages.errors import SluiceError
from runtime.run_dir import RunDir
from supervisor.client.admin_client import AdminClient

START_TIMEOUT_S = 300.0
NUM_STREAMS = 8
PROCESSES = ("tokenizer", "detokenizer", "scheduler", "frontend")
SETTLE_S = 3.0
"""Between a process's return and the next kill, so that streams run again and no back-off grows."""

AFTERMATH_S = 1.0
"""For which streams and log are watched when all is as before."""

STANDBY_TIMEOUT_S = 240.0
AWAY_TIMEOUT_S = 60.0
RETRY_S = 0.02
PROMPT = "Once upon a time "


class Recovery(msgspec.Struct, frozen=True):
    """One kill, in seconds from the signal; `streams_s` is null for the frontend, whose streams end with it."""

    process: str
    accepts_s: float
    """Until `GET /health` is answered; what is connected meanwhile waits in the socket's queue."""

    ready_s: float
    streams_s: float | None
    new_request_s: float
    stream_pause_s: float | None
    """The longest time between two tokens of one stream; null likewise."""

    phases: list[tuple[float, str]]
    """The launcher's messages about the process, with their times."""


class Replacement(msgspec.Struct, frozen=True):
    """One restart on command: how long it took, the longest time without any token, and requests that failed."""

    process: str
    seconds: float
    streams_s: float
    num_failed: int
    stream_pause_s: float


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; returns 0, or 1 if the server does not come back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="as for launch.py (default: the bundled model)")
    parser.add_argument("--kills", type=int, default=5, help="kills of each process (default: 5)")
    parser.add_argument("--processes", nargs="+", default=PROCESSES, help="which, by name (default: one of each kind)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    parser.add_argument("launch_flags", nargs="*", metavar="-- FLAG", help="more flags for launch.py, after --")
    options = parser.parse_args(arguments)
    model = ["--model", options.model] if options.model else []
    flags = [*model, "--max-restarts-per-min", "1000", *options.launch_flags]
    try:
        with started_server(flags, START_TIMEOUT_S) as (server, target):
            kills = [process for _ in range(options.kills) for process in options.processes]
            waits = not {"--no-standby", "--data-parallel", "--tensor-parallel"} & set(options.launch_flags)
            recoveries, replacements = uvloop.run(measure(server, target, kills, waits))
    except SluiceError as error:
        print(f"bench_recovery: {error}", file=sys.stderr)
        return 1
    print_recoveries(recoveries)
    print_replacements(replacements)
    if options.json:
        results = {"flags": flags, "streams": NUM_STREAMS, "kills": recoveries, "replacements": replacements}
        write_result(options.json, "recovery", results)
    return 0


async def measure(
    server: ServerProcess, target: Target, kills: list[str], waits_for_standby: bool, replaces: bool = True
) -> tuple[list[Recovery], list[Replacement]]:
    """Kills the processes in turn under load, then replaces each on command, if wanted.

    Raises `ServerUnavailableError` if one does not come back.
    """
    facts = ask_server(target)
    num_tokens = facts.max_model_len // 2
    load = Load(target, SamplingFields(ignore_eos=True), Limits(10**9, max_seconds=10**9))
    requests = (PlannedRequest(f"{PROMPT}{number}", num_tokens) for number in itertools.count())
    running = asyncio.create_task(load.closed_loop(requests, NUM_STREAMS))
    found: list[Recovery] = []
    for process in kills:
        await asyncio.sleep(SETTLE_S)
        found.append(await kill(server, target, process, load, waits_for_standby))
        print(f"{process}: ready after {found[-1].ready_s:.2f} s", file=sys.stderr)
    replaced: list[Replacement] = []
    for process in dict.fromkeys(kills) if replaces else ():
        await asyncio.sleep(SETTLE_S)
        replaced.append(await replace(server, target, process, load))
        print(f"{process}: replaced in {replaced[-1].seconds:.2f} s", file=sys.stderr)
    load.cut_off()
    await running
    return found, replaced


async def kill(
    server: ServerProcess, target: Target, process: str, load: Load, waits_for_standby: bool = False
) -> Recovery:
    """Kills one process and returns when all is as before. The scheduler is killed when one stands by, if wanted."""
    if process == SCHEDULER and waits_for_standby:
        await standby_is_ready(target)
    status = await asyncio.to_thread(process_status, target, process)
    killed_ns, log_length = time.monotonic_ns(), len(server.log)
    os.kill(status["pid"], signal.SIGKILL)
    first_ns, accepts_ns = await asyncio.gather(
        first_token_of_new_request(target, killed_ns), asyncio.to_thread(first_answer, target)
    )
    while (now := await asyncio.to_thread(process_status, target, process)).get("incarnation") == status[
        "incarnation"
    ] or (now["state"] not in ("ready", "busy")):
        if time.monotonic_ns() - killed_ns > AWAY_TIMEOUT_S * 1e9:
            raise ServerUnavailableError(f"{process} did not come back:\n{server.log_text()}")
        await asyncio.sleep(RETRY_S)
    ready_ns = time.monotonic_ns()
    await asyncio.sleep(AFTERMATH_S)
    lines = list(server.log)[log_length:]
    phases = [
        (round(at_s + server.begin_s - killed_ns / 1e9, 3), line) for at_s, line in lines if line.startswith(process)
    ]
    return Recovery(
        process=process,
        accepts_s=round((accepts_ns - killed_ns) / 1e9, 3),
        ready_s=round((ready_ns - killed_ns) / 1e9, 3),
        streams_s=None if process == "frontend" else round(longest_silence_ns(load, killed_ns) / 1e9, 3),
        new_request_s=round((first_ns - killed_ns) / 1e9, 3),
        stream_pause_s=None if process == "frontend" else round(longest_pause_ns(load, killed_ns) / 1e9, 3),
        phases=phases,
    )


async def standby_is_ready(target: Target) -> None:
    """Returns when a process stands by for the scheduler. Raises `ServerUnavailableError`."""
    deadline_s = time.monotonic() + STANDBY_TIMEOUT_S
    while (await asyncio.to_thread(process_status, target, SCHEDULER + SUCCESSOR))["state"] != "standby":
        if time.monotonic() > deadline_s:
            raise ServerUnavailableError(f"nothing stands by after {STANDBY_TIMEOUT_S:g} s")
        await asyncio.sleep(RETRY_S * 10)


async def replace(server: ServerProcess, target: Target, process: str, load: Load) -> Replacement:
    """Replaces one process under load, and returns when the old one has left."""
    began_ns, results = time.monotonic_ns(), load.measurement.results
    old = await asyncio.to_thread(process_status, target, process)
    await asyncio.to_thread(order_restart, server.run_dir, process)
    while (now := await asyncio.to_thread(process_status, target, f"{process}.old")).get("pid") == old["pid"]:
        if time.monotonic_ns() - began_ns > AWAY_TIMEOUT_S * 1e9:
            raise ServerUnavailableError(f"the old {process} does not leave: {now}")
        await asyncio.sleep(RETRY_S)
    done_ns = time.monotonic_ns()
    await asyncio.sleep(AFTERMATH_S)
    return Replacement(
        process=process,
        seconds=round((done_ns - began_ns) / 1e9, 3),
        streams_s=round(longest_silence_ns(load, began_ns) / 1e9, 3),
        num_failed=sum(result.end_ns > began_ns and result.outcome != OK for result in results),
        stream_pause_s=round(longest_pause_ns(load, began_ns) / 1e9, 3),
    )


def order_restart(run_dir: RunDir, process: str) -> None:
    with AdminClient(run_dir) as line:
        result = line.give(RestartProcess(process), AWAY_TIMEOUT_S)
    if not isinstance(result, Done):
        raise ServerUnavailableError(f"{process} was not replaced: {result}")


def first_answer(target: Target) -> int:
    """Returns when HTTP answers (`time.monotonic_ns`)."""
    deadline_s = time.monotonic() + AWAY_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process_status(target, "frontend")["incarnation"] is not None:
            return time.monotonic_ns()
        time.sleep(RETRY_S)
    raise ServerUnavailableError(f"{target.origin} does not answer {AWAY_TIMEOUT_S:g} s after a kill")


async def first_token_of_new_request(target: Target, killed_ns: int) -> int:
    """Returns when a request that is sent until it is admitted has its first token (`time.monotonic_ns`)."""
    pool = ConnectionPool(target)
    try:
        while time.monotonic_ns() - killed_ns < AWAY_TIMEOUT_S * 1e9:
            result = StreamResult()
            await pool.stream(SamplingFields(ignore_eos=True).body(PlannedRequest(PROMPT, 4)), result)
            if result.outcome == OK:
                return result.arrivals_ns[0]
            await asyncio.sleep(RETRY_S)
    finally:
        pool.close()
    raise ServerUnavailableError(f"{target.origin} admits no request {AWAY_TIMEOUT_S:g} s after a kill")


def longest_silence_ns(load: Load, since_ns: int) -> int:
    """Returns the longest time without a token of any stream, counted from `since_ns`."""
    arrivals = sorted(at for result in load.measurement.results for at in result.arrivals_ns if at > since_ns)
    return max(later - earlier for earlier, later in itertools.pairwise([since_ns, *arrivals]))


def longest_pause_ns(load: Load, since_ns: int) -> int:
    """Returns the longest time between two tokens of one stream, the later of which came after `since_ns`."""
    results = load.measurement.results
    pairs = (pair for result in results for pair in itertools.pairwise(result.arrivals_ns) if pair[1] > since_ns)
    return max((later - earlier for earlier, later in pairs), default=0)


def process_status(target: Target, process: str) -> dict[str, Any]:
    """Returns the status of a process from `/health`, empty while there is no answer."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=5)
    try:
        connection.request("GET", "/health")
        return msgspec.json.decode(connection.getresponse().read())["processes"][process]
    except (OSError, http.client.HTTPException, KeyError):
        return {"incarnation": None, "state": "unknown"}
    finally:
        connection.close()


def print_recoveries(recoveries: list[Recovery]) -> None:
    heads = f"{'HTTP':>11}{'ready':>11}{'streams':>11}{'new request':>13}{'one stream':>12}"
    print(f"{'seconds from the kill':24}{heads}   (medians)")
    for process in dict.fromkeys(recovery.process for recovery in recoveries):
        of_process = [recovery for recovery in recoveries if recovery.process == process]
        print(f"{process:24}" + "".join(f"{value:>11}" for value in medians(of_process)))
    longest = [recovery.stream_pause_s for recovery in recoveries if recovery.stream_pause_s is not None]
    if longest:
        print(f"longest pause of a continued stream: {max(longest):.2f} s")
    of_scheduler = sorted((one for one in recoveries if one.process == "scheduler"), key=lambda one: one.ready_s)
    for at_s, line in of_scheduler[len(of_scheduler) // 2].phases if of_scheduler else ():
        print(f"{at_s:8.2f}  {line}")


def print_replacements(replacements: list[Replacement]) -> None:
    for one in replacements:
        pauses = f"{one.streams_s:.2f} s, of one stream {one.stream_pause_s:.2f} s"
        pause = f"longest pause of the streams {pauses}; {one.num_failed} requests failed"
        print(f"{one.process:24}replaced on command in {one.seconds:.2f} s: {pause}")


def medians(recoveries: list[Recovery]) -> Iterator[str]:
    for field in ("accepts_s", "ready_s", "streams_s", "new_request_s", "stream_pause_s"):
        values = [value for recovery in recoveries if (value := getattr(recovery, field)) is not None]
        yield f"{statistics.median(values):.2f}" if values else "-"


if __name__ == "__main__":
    raise SystemExit(main())
