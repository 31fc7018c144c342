"""How fast a server under load answers those who watch it, also while its scheduler is stopped.

    python -m benchmarks.bench_watching [--seconds 30] [--concurrency 16] [--json FILE] [FLAGS]

FLAGS are the server's own. One client asks in turn for each of `PATHS`, over a connection that stays open, while
bench_server loads the server; `stopped` is the same after SIGSTOP to the scheduler, with the requests then open.
"""

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.load.connection import Target
from benchmarks.result_file import ROOT, write_result
from benchmarks.server_process import started_server

START_TIMEOUT_S = 120.0
TIMEOUT_S = 60.0
STOPPED_S = 5.0
NUM_KEPT = 1000
"""Ended requests of which a frontend keeps the timelines: so many there must be before anything is measured."""

LOAD = (
    *("--num-requests", "1000000", "--max-seconds", "3600"),
    *("--input-tokens", "8:32", "--output-tokens", "4:64"),
)
PATHS = ("/health", "/requests", f"/requests?limit={NUM_KEPT}", "/requests/{id}", "/metrics")


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds from a request to the end of its answer."""

    num: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def latency_of(seconds: list[float]) -> Latency:
    ranked = sorted(1000 * each for each in seconds)
    places = (len(ranked) // 2, min(len(ranked) - 1, len(ranked) * 99 // 100), -1)
    return Latency(len(ranked), *(round(ranked[place], 2) for place in places))


class Watcher:
    """One client that looks at the server again and again."""

    def __init__(self, target: Target):
        self._connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_S)

    def get(self, path: str) -> bytes:
        self._connection.request("GET", path)
        return self._connection.getresponse().read()

    def num_kept(self) -> int:
        return json.loads(self.get("/requests?state=finished&limit=1"))["num_found"]

    def watch(self, is_over: Callable[[], bool]) -> dict[str, Latency]:
        """Returns the latencies of each path."""
        seconds: defaultdict[str, list[float]] = defaultdict(list)
        while not is_over():
            newest = json.loads(self.get("/requests?limit=1"))["requests"][0]["uid"]
            for path in PATHS:
                begin_s = time.perf_counter()
                self.get(path.replace("{id}", str(newest)))
                seconds[path].append(time.perf_counter() - begin_s)
        return {path: latency_of(each) for path, each in seconds.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of the load, once there is much to show")
    parser.add_argument("--concurrency", type=int, default=16, help="streams at a time (default: 16)")
    parser.add_argument("--min-kept", type=int, default=NUM_KEPT, help="ended requests before it begins (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options, flags = parser.parse_known_args(arguments)
    with started_server([*flags, "--log-level", "warning"], START_TIMEOUT_S) as (server, target):
        command = [sys.executable, "-m", "benchmarks.bench_server", "--url", target.origin, *LOAD]
        load = subprocess.Popen(
            [*command, "--concurrency", f"{options.concurrency}"], cwd=ROOT, stdout=subprocess.DEVNULL
        )
        scheduler_pid = server.run_dir.pids()["scheduler"]
        try:
            watcher = Watcher(target)
            while watcher.num_kept() < options.min_kept:
                time.sleep(0.5)
            loaded = watcher.watch(deadline(options.seconds))
            os.kill(scheduler_pid, signal.SIGSTOP)
            try:
                stopped = watcher.watch(deadline(STOPPED_S))
            finally:
                os.kill(scheduler_pid, signal.SIGCONT)
        finally:
            load.kill()
            load.wait()
    result = {"concurrency": options.concurrency, "loaded": loaded, "stopped": stopped}
    for name, latencies in (("loaded", loaded), ("stopped", stopped)):
        for path, latency in latencies.items():
            times = f"p50 {latency.p50_ms:7.2f}  p99 {latency.p99_ms:7.2f}  max {latency.max_ms:7.2f} ms"
            print(f"{name:<8} {path:<22} {times}")
    if options.json:
        write_result(options.json, "watching", {**result, "flags": flags})
    return 0


def deadline(seconds: float) -> Callable[[], bool]:
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() >= end_s


if __name__ == "__main__":
    raise SystemExit(main())
