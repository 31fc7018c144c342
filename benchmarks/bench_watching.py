"""How fast a server answers those who watch it: under load, while its scheduler is stopped, and in long prefills.

    python -m benchmarks.bench_watching [--seconds 30] [--concurrency 16] [--json FILE] [FLAGS]

FLAGS are the server's own. One client asks in turn for each of `PATHS`, over a connection that stays open, while
bench_server loads the server; `stopped` is the same after SIGSTOP to the scheduler, with the requests then open. Then
another server, of the shape `PREFILL_SHAPE` with random weights, prefills one prompt of its whole context after the
other, each in one step: `prefilling`.
"""

import argparse
import http.client
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.load.connection import Target
from benchmarks.model_shapes import SHAPES
from benchmarks.result_file import ROOT, write_result
from benchmarks.served_shape import served_shape
from benchmarks.server_process import started_server

START_TIMEOUT_S = 120.0
TIMEOUT_S = 60.0
PREFILL_TIMEOUT_S = 300.0
LOOK_S = 0.02
STOPPED_S = 5.0
FIRST_ID, NUM_IDS = 100, 1000
"""Of token ids in the prompts of prefills: none of these begins as another, so nothing is cached."""

NUM_KEPT = 1000
"""Ended requests of which a frontend keeps the timelines: so many there must be before anything is measured."""

LOAD = (
    *("--num-requests", "1000000", "--max-seconds", "3600"),
    *("--input-tokens", "8:32", "--output-tokens", "4:64"),
)
PREFILL_SHAPE = "llama-135m"
TOKENIZER = ROOT / "assets" / "shakespeare-gpt2"

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


def watch_prefills(seconds: float) -> tuple[dict[str, Latency], float]:
    """Returns the latencies of each path while one prompt after the other is prefilled, and how long each took."""
    num_tokens = int(str(SHAPES[PREFILL_SHAPE]["max_position_embeddings"]))
    flags = ("--max-num-batched-tokens", f"{num_tokens}", "--log-level", "warning")
    took_s: list[float] = []
    is_over = threading.Event()

    def prefill(target: Target) -> None:
        connection = http.client.HTTPConnection(target.host, target.port, timeout=PREFILL_TIMEOUT_S)
        for number in itertools.count():
            if is_over.is_set():
                return
            begin_s = time.perf_counter()
            prompt = [FIRST_ID + (number + index) % NUM_IDS for index in range(num_tokens - 1)]
            body = json.dumps({"prompt": prompt, "max_tokens": 1, "stream": False})
            connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
            answer = connection.getresponse().read()
            assert b"finish_reason" in answer, answer  # ends this thread, and then the benchmark
            took_s.append(time.perf_counter() - begin_s)

    with (
        served_shape(SHAPES[PREFILL_SHAPE], TOKENIZER) as model,
        started_server([*model, *flags], START_TIMEOUT_S) as (_, target),
    ):
        client = threading.Thread(target=prefill, args=(target,), daemon=True)
        client.start()
        watcher = Watcher(target)
        while not json.loads(watcher.get("/requests?limit=1"))["requests"]:
            assert client.is_alive(), "no prefill runs"
            time.sleep(LOOK_S)
        latencies = watcher.watch(deadline(seconds))
        is_over.set()
        client.join()
    assert took_s, "no prefill has ended"
    return latencies, statistics.median(took_s)


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
    prefilling, prefill_s = watch_prefills(options.seconds)
    phases = {"loaded": loaded, "stopped": stopped, "prefilling": prefilling}
    result = {"concurrency": options.concurrency, **phases, "prefill_s": round(prefill_s, 2)}
    print(f"a prefill took {prefill_s:.2f} s")
    for name, latencies in phases.items():
        for path, latency in latencies.items():
            times = f"p50 {latency.p50_ms:7.2f}  p99 {latency.p99_ms:7.2f}  max {latency.max_ms:7.2f} ms"
            print(f"{name:<10} {path:<22} {times}")
    if options.json:
        write_result(options.json, "watching", {**result, "flags": flags})
    return 0


def deadline(seconds: float) -> Callable[[], bool]:
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() >= end_s


if __name__ == "__main__":
    raise SystemExit(main())
