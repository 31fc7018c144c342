"""Kills and stops each stage in turn under load: how long streams wait, and whether all have the tokens of one process.

    python -m benchmarks.experiments.stages_0154.kill_stages --json FILE#RUN [--root CHECKOUT] [-- FLAG …]

Mixed load (greedy and seeded, short and long prompts, streamed and not) on a server of several stages in float32. Each
request's tokens are compared with those of a server of one process. SIGSTOP makes a stage hang; --hang-timeout-s ends
that. A pause is the longest gap between two tokens of one stream; a silence the longest time without any token.
"""

import argparse
import http.client
import itertools
import json
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.load.connection import Target
from benchmarks.result_file import ROOT, write_result
from benchmarks.server_process import ServerProcess

MODEL = ROOT / "assets/smollm2-135m-instruct/SmolLM2-135M-Instruct.gguf"
NUM_CLIENTS, NUM_REQUESTS, HANG_S, TIMEOUT_S = 6, 18, 4, 120
FLAGS = ("--cpu-threads", "1", "--dtype", "float32", "--kv-cache-memory-gb", "0.5", "--max-restarts-per-min", "100")


@dataclass
class Reply:
    """The tokens of one request, each with the time of its arrival if it was streamed."""

    request: int
    token_ids: list[int] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)
    error: str = ""


def make_requests() -> list[dict[str, Any]]:
    rng = random.Random(7)
    return [
        {
            "prompt": [rng.randrange(100, 20_000) for _ in range(rng.choice((8, 60, 300)))],
            "max_tokens": rng.choice((40, 80, 160)),
            "ignore_eos": True,
            "temperature": 0.9 * (number % 2),
            "seed": number,
            "stream": number % 6 != 5,
        }
        for number in range(NUM_REQUESTS)
    ]


def ask(target: Target, number: int, body: dict[str, Any]) -> Reply:
    """Sends a request; returns all that came, and what was wrong with the end."""
    reply, has_ended = Reply(number), False
    connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            reply.error = f"{response.status} {response.read().decode()}"
        elif not body["stream"]:
            reply.token_ids, has_ended = json.loads(response.read())["token_ids"], True
        else:
            for line in response:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    reply.token_ids += event.get("token_ids", [])
                    reply.arrivals_s += [time.monotonic()] * len(event.get("token_ids", []))
                    reply.error = str(event.get("error", ""))
                has_ended |= line.startswith(b"data: [DONE]")
    except (OSError, http.client.HTTPException) as error:
        reply.error = repr(error)
    finally:
        connection.close()
    reply.error = reply.error or "" if has_ended else reply.error or "no end"
    return reply


class Load:
    """Clients that send the requests in turn until `stop`."""

    def __init__(self, target: Target, requests: Sequence[dict[str, Any]]):
        self.replies: list[Reply] = []
        self._target, self._requests, self._numbers, self._is_over = target, requests, itertools.count(), False
        self._threads = [threading.Thread(target=self._run) for _ in range(NUM_CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._is_over:
            number = next(self._numbers) % len(self._requests)
            self.replies.append(ask(self._target, number, self._requests[number]))

    def stop(self) -> None:
        """Returns when the requests that run have ended."""
        self._is_over = True
        for thread in self._threads:
            thread.join()


def status_of(target: Target, name: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return json.loads(connection.getresponse().read())["processes"][name]
    finally:
        connection.close()


@dataclass
class Death:
    """A stage that got a signal at `at_s`, and was back `ready_s` later. `lines`: the launcher's, with their times."""

    stage: str
    how: str
    at_s: float
    ready_s: float = 0.0
    resumed: float = 0.0
    recomputed: float = 0.0
    lines: list[str] = field(default_factory=list)

    def pauses(self, replies: Sequence[Reply]) -> dict[str, float]:
        """Returns the longest gap of a stream that continued, and the longest time without a token."""
        until_s = self.at_s + self.ready_s + 2
        gaps = [
            later - earlier
            for reply in replies
            for earlier, later in itertools.pairwise(reply.arrivals_s)
            if earlier < until_s and later > self.at_s
        ]
        times = sorted(at_s for reply in replies for at_s in reply.arrivals_s if self.at_s < at_s < until_s)
        silence_s = max(later - earlier for earlier, later in itertools.pairwise([self.at_s, *times]))
        return {"pause_s": round(max(gaps, default=0.0), 2), "silence_s": round(silence_s, 2)}


def disturb(server: ServerProcess, target: Target, stage: str, how: str, leader: str = "scheduler") -> Death:
    """Sends the signal to a stage, and returns when the engine serves again and has resumed its requests."""
    own = status_of(target, stage)
    incarnation, log_length = status_of(target, leader)["incarnation"], len(server.log)
    death = Death(stage, how, time.monotonic())
    os.kill(own["pid"], signal.Signals[how])
    while (now := status_of(target, leader))["incarnation"] == incarnation or now["state"] not in ("ready", "busy"):
        assert time.monotonic() < death.at_s + TIMEOUT_S, server.log_text()
        time.sleep(0.05)
    death.ready_s = round(time.monotonic() - death.at_s, 2)
    time.sleep(3.0)
    gauges = status_of(target, leader)["gauges"]
    death.resumed, death.recomputed = gauges["resumed_tokens"], gauges["recomputed_tokens"]
    names = ("scheduler", "rank")
    death.lines = [
        f"{at_s + server.begin_s - death.at_s:.2f} {line}"
        for at_s, line in list(server.log)[log_length:]
        if line.startswith(names)
    ]
    return death


def measure(num_stages: int, options: argparse.Namespace, expected: Sequence[Reply]) -> dict[str, Any]:
    flags = ["--model", str(options.model), *FLAGS, "--pipeline-parallel", str(num_stages)]
    server = ServerProcess([*flags, "--hang-timeout-s", str(HANG_S), *options.launch_flags], options.root)
    deaths: list[Death] = []
    try:
        target = server.wait_until_ready(TIMEOUT_S)
        load, began_s = Load(target, make_requests()), time.monotonic()
        stages = [*(f"rank{number}" for number in range(1, num_stages)), "scheduler"]
        victims = [(stage, how) for how in ("SIGKILL", "SIGSTOP") for stage in stages]
        for stage, how in itertools.cycle(victims):
            time.sleep(options.settle_s)
            deaths.append(disturb(server, target, stage, how))
            print(stage, how, deaths[-1].ready_s, flush=True)
            if time.monotonic() - began_s > options.seconds and len(deaths) >= len(victims):
                break
        load.stop()
    finally:
        server.stop()
    return {"seconds": round(time.monotonic() - began_s, 1), **summary(load.replies, expected, deaths)}


def summary(replies: Sequence[Reply], expected: Sequence[Reply], deaths: Sequence[Death]) -> dict[str, Any]:
    ended = [reply for reply in replies if not reply.error]
    return {
        "requests": len(replies),
        "tokens": sum(len(reply.token_ids) for reply in replies),
        "failed": [reply.error for reply in replies if reply.error],
        "other_tokens": sum(reply.token_ids != expected[reply.request].token_ids for reply in ended),
        "computed_again": round(sum(one.recomputed for one in deaths) / max(1, sum(one.resumed for one in deaths)), 3),
        "deaths": [
            {"stage": one.stage, "how": one.how, "ready_s": one.ready_s, **one.pauses(replies)}
            | {"resumed": one.resumed, "recomputed": one.recomputed, "lines": one.lines}
            for one in deaths
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, nargs="+", default=(2, 3), help="(default: 2 3)")
    parser.add_argument("--seconds", type=float, default=60, help="of load, at least (default: %(default)s)")
    parser.add_argument("--settle-s", type=float, default=5, help="between two deaths (default: %(default)s)")
    parser.add_argument("--model", type=Path, default=MODEL, help="(default: the bundled chat model)")
    parser.add_argument("--root", type=Path, default=None, metavar="CHECKOUT", help="the code of another checkout")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    parser.add_argument("launch_flags", nargs="*", metavar="-- FLAG", help="more flags for launch.py, after --")
    options = parser.parse_args()
    alone = ServerProcess(["--model", str(options.model), *FLAGS, "--no-standby"])
    try:
        target = alone.wait_until_ready(TIMEOUT_S)
        expected = [ask(target, number, body) for number, body in enumerate(make_requests())]
    finally:
        alone.stop()
    assert not any(reply.error for reply in expected)
    found = {f"{count} stages": measure(count, options, expected) for count in options.stages}
    print(json.dumps(found, indent=1))
    if options.json:
        write_result(options.json, "deaths of stages", found)


if __name__ == "__main__":
    main()
