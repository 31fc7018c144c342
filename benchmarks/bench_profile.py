"""What a profile costs while it runs: the same requests without and with one, in turn.

    python -m benchmarks.bench_profile --streams 8 --rounds 5 --json FILE

Each round sends one batch of equal requests without a profile and one with a profile of all processes around it. The
time that a profile takes to begin and to end (when steps wait, in the scheduler) is not in the rate and is given apart.
"""

import argparse
import json
import secrets
import statistics
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.result_file import write_result
from benchmarks.server_process import started_server

START_TIMEOUT_S = 300.0
REQUEST_TIMEOUT_S = 300.0


class ProfileCost(msgspec.Struct, frozen=True):
    """Tokens a second of all streams together, and the seconds that a profile takes to begin and to be merged."""

    num_streams: int
    tokens_per_s_off: list[float]
    tokens_per_s_on: list[float]
    slowdown: float
    """Median of the rounds: time with a profile over time without."""
    start_s: float
    stop_s: float


class Client:
    """Sends the batches of one server."""

    def __init__(self, url: str, admin_key: str, num_streams: int, num_tokens: int):
        self._url = url
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {admin_key}"}
        self._num_streams = num_streams
        self._num_tokens = num_tokens

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers)
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as reply:
            return json.load(reply)

    def batch_s(self) -> float:
        """Returns the seconds that all streams take together."""
        body = {"prompt": "To be, or not to be", "max_tokens": self._num_tokens, "ignore_eos": True, "stream": False}
        begin_s = time.monotonic()
        with ThreadPoolExecutor(self._num_streams) as pool:
            list(pool.map(lambda seed: self.post("/generate", {**body, "seed": seed}), range(self._num_streams)))
        return time.monotonic() - begin_s

    def timed_post(self, path: str) -> tuple[float, dict[str, Any]]:
        begin_s = time.monotonic()
        reply = self.post(path, {})
        return time.monotonic() - begin_s, reply


def measure(client: Client, num_streams: int, num_tokens: int, num_rounds: int) -> ProfileCost:
    off_s, on_s, start_s, stop_s = [], [], [], []
    client.batch_s()
    for _ in range(num_rounds):
        off_s.append(client.batch_s())
        start_s.append(client.timed_post("/start_profile")[0])
        on_s.append(client.batch_s())
        seconds, reply = client.timed_post("/stop_profile")
        stop_s.append(seconds)
        Path(reply["file"]).unlink()
    num_all = num_streams * num_tokens
    return ProfileCost(
        num_streams=num_streams,
        tokens_per_s_off=[round(num_all / seconds, 1) for seconds in off_s],
        tokens_per_s_on=[round(num_all / seconds, 1) for seconds in on_s],
        slowdown=round(statistics.median(on / off for on, off in zip(on_s, off_s, strict=True)), 3),
        start_s=round(statistics.median(start_s), 3),
        stop_s=round(statistics.median(stop_s), 3),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="assets/shakespeare-gpt2", help="the model that is served")
    parser.add_argument("--streams", type=int, default=8, help="requests at a time (default: 8)")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each (default: 200)")
    parser.add_argument("--rounds", type=int, default=5, help="batches of each kind (default: 5)")
    parser.add_argument("--json", type=Path, help="file for the result")
    arguments = parser.parse_args()
    admin_key = secrets.token_urlsafe()
    with started_server(["--model", arguments.model, "--admin-key", admin_key], START_TIMEOUT_S) as (_, target):
        client = Client(f"http://{target.host}:{target.port}", admin_key, arguments.streams, arguments.tokens)
        cost = measure(client, arguments.streams, arguments.tokens, arguments.rounds)
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(cost), indent=1).decode() + "\n")
    if arguments.json:
        write_result(arguments.json, "profile", cost)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
