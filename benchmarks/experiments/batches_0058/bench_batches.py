"""A batch's effect on clients' streams: inter-token latency without a batch and in the middle of one.

    python -m benchmarks.experiments.batches_0058.bench_batches [--streams 1] [--rounds 8] [--root DIR] [FLAGS]

FLAGS are server flags, including --model. The batch occupies all rows before the first stream arrives. `alone` runs the
same streams without a batch. `batch_tokens_per_s` is the batch's rate while the streams run. --root is the checkout to
measure.
"""

import argparse
import http.client
import json
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.load.connection import Target
from benchmarks.load.server_facts import post_json
from benchmarks.result_file import write_result
from benchmarks.server_process import ServerProcess

START_TIMEOUT_S = 120.0
TIMEOUT_S = 120.0
NUM_LINES = 5000
LINE_TOKENS = (20, 400)
PROMPT_IDS = (20, 400)
FIRST_ID, NUM_IDS = 100, 900
STREAM_TOKENS = 400
SETTLE_S = 3.0
URL = "/v1/completions"


class Latency(msgspec.Struct, frozen=True):
    """Gaps between tokens, in milliseconds."""

    num: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def latency_of(seconds: list[float]) -> Latency:
    ranked = sorted(1000 * each for each in seconds)
    places = (len(ranked) // 2, min(len(ranked) - 1, len(ranked) * 99 // 100), -1)
    return Latency(len(ranked), *(round(ranked[place], 2) for place in places))


def make_lines(chance: random.Random) -> str:
    """Returns a batch file of prompts and outputs of many lengths."""
    lines: list[str] = []
    for number in range(NUM_LINES):
        body = {"prompt": prompt_ids(chance), "max_tokens": chance.randint(*LINE_TOKENS), "ignore_eos": True}
        lines.append(json.dumps({"custom_id": f"{number}", "method": "POST", "url": URL, "body": body}))
    return "\n".join(lines)


def prompt_ids(chance: random.Random) -> list[int]:
    return [chance.randrange(FIRST_ID, FIRST_ID + NUM_IDS) for _ in range(chance.randint(*PROMPT_IDS))]


def get(target: Target, path: str) -> Any:
    connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_S)
    connection.request("GET", path)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def gauge(target: Target, name: str) -> float:
    """Returns one of the scheduler's gauges, 0 if it has none."""
    return get(target, "/health")["processes"]["scheduler"]["gauges"].get(name, 0)


def stream(target: Target, prompt: list[int], gaps_s: list[float]) -> None:
    """Adds the times between the tokens of one stream."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_S)
    body = {"prompt": prompt, "max_tokens": STREAM_TOKENS, "ignore_eos": True, "stream": True}
    connection.request("POST", URL, json.dumps(body), {"Content-Type": "application/json"})
    last_s = 0.0
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            now_s = time.perf_counter()
            if last_s:
                gaps_s.append(now_s - last_s)
            last_s = now_s
    connection.close()


def measure(target: Target, num_streams: int, num_rounds: int) -> tuple[Latency, float]:
    """Returns the times between tokens of streams, some at a time, and the tokens a second that others got."""
    chance, gaps_s = random.Random(1), list[float]()
    begin_s, begin = time.perf_counter(), gauge(target, "output_tokens")
    for _ in range(num_rounds):
        threads = [
            threading.Thread(target=stream, args=(target, prompt_ids(chance)[:50], gaps_s)) for _ in range(num_streams)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    time.sleep(1.1)  # gauges come once a second
    num_others = gauge(target, "output_tokens") - begin - num_streams * num_rounds * STREAM_TOKENS
    return latency_of(gaps_s), num_others / (time.perf_counter() - begin_s)


def start_batch(target: Target) -> None:
    """Uploads a batch; returns when it has as many rows as it gets."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_S)
    parts = f'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\n{FILE_HEADER}\r\n\r\n'
    form = f"{parts}{make_lines(random.Random(0))}\r\n--x--\r\n"
    connection.request("POST", "/v1/files", form.encode(), {"Content-Type": "multipart/form-data; boundary=x"})
    file_id = json.loads(connection.getresponse().read())["id"]
    connection.close()
    post_json(target, "/v1/batches", {"input_file_id": file_id, "endpoint": URL, "completion_window": "24h"})
    end_s = time.monotonic() + TIMEOUT_S
    while not gauge(target, "decoding") and time.monotonic() < end_s:
        time.sleep(0.1)
    time.sleep(SETTLE_S)


FILE_HEADER = 'Content-Disposition: form-data; name="file"; filename="in.jsonl"'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as scratch:
        arguments = [*flags, "--batch-dir", scratch]
        server = ServerProcess(arguments, options.root)
        try:
            target = server.wait_until_ready(START_TIMEOUT_S)
            measure(target, options.streams, 1)
            alone, _ = measure(target, options.streams, options.rounds)
            start_batch(target)
            num_rows = gauge(target, "decoding")
            second_update, batch_tokens_per_s = measure(target, options.streams, options.rounds)
        finally:
            server.stop()
    ratio = {name: round(getattr(second_update, name) / getattr(alone, name), 2) for name in ("p50_ms", "p99_ms")}
    print(f"alone {alone}\nwith a batch of {num_rows:.0f} rows {second_update}\nratio {ratio}")
    print(f"the batch gets {batch_tokens_per_s:.0f} tokens/s during the streams")
    if options.json:
        result = {"alone": alone, "with_batch": second_update, "ratio": ratio, "batch_tokens_per_s": batch_tokens_per_s}
        write_result(options.json, "batches", {"streams": options.streams, **result})


if __name__ == "__main__":
    main()
