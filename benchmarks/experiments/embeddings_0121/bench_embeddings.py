"""Vectors over HTTP: 256 texts in one request, and 32 clients of one text each, in turns with other programs.

    python -m benchmarks.experiments.embeddings_0121.bench_embeddings MODEL_DIR --onnx-dir DIR --peer-python PYTHON
        [--peers openvino fastembed …] [--rounds 5] [--save FILE] [FLAGS]

All servers run during the whole measurement, and each round asks one after the other. `peer.py` serves the peers with
batches of the requests that wait; its interpreter needs their packages. DIR has model.onnx and the tokenizer's files.
FLAGS are this server's. Texts have 128 tokens, of whole words.
"""

import argparse
import http.client
import json
import random
import socket
import statistics
import subprocess
import threading
import time
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.result_file import write_result
from benchmarks.server_process import ServerProcess
from messages.columns import unpack_float32

PEERS = ("sentence_transformers", "fastembed", "openvino", "infinity")
OURS = "sluice"
NUM_TEXTS, NUM_CLIENTS, NUM_WORDS = 256, 32, 126
READY_S = 120.0


class Server(NamedTuple):
    name: str
    host: str
    port: int

    def embed(self, connection: http.client.HTTPConnection, texts: Sequence[str]) -> list["Any"]:
        body = json.dumps({"input": texts, "encoding_format": "base64"})
        connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        assert response.status == 200, content
        return [unpack_float32(b64decode(entry["embedding"])) for entry in json.loads(content)["data"]]

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=READY_S)


class Texts:
    """Random texts, none of them twice."""

    def __init__(self, model_dir: Path):
        words = (model_dir / "vocab.txt").read_text(encoding="utf-8").split("\n")
        self._words = [word for word in words if word.isascii() and word.isalpha() and len(word) > 2]
        self._random = random.Random(1)

    def take(self, num_texts: int) -> list[str]:
        return [" ".join(self._random.choices(self._words, k=NUM_WORDS)) for _ in range(num_texts)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--onnx-dir", type=Path, required=True)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--peers", nargs="*", default=PEERS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4, help="of each client in a round")
    parser.add_argument("--save", type=Path)
    options, flags = parser.parse_known_args()
    ours = ServerProcess(["--model", str(options.model_dir), "--no-standby", *flags])
    peers = {name: start_peer(name, options) for name in options.peers}
    try:
        target = ours.wait_until_ready(READY_S)
        servers = [Server(OURS, target.host, target.port or 0)]
        servers += [Server(name, "127.0.0.1", port) for name, (_, port) in peers.items()]
        result = measure(servers, Texts(options.model_dir), options.rounds, options.requests)
    finally:
        for process, _ in peers.values():
            process.terminate()
        ours.stop()
    show(result)
    if options.save:
        write_result(options.save, "embeddings", result)


def start_peer(name: str, options: argparse.Namespace) -> tuple[subprocess.Popen[bytes], int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("peer.py")
    arguments = [options.peer_python, str(script), name, str(options.model_dir), str(options.onnx_dir), str(port)]
    return subprocess.Popen(arguments), port


def measure(servers: Sequence[Server], texts: Texts, num_rounds: int, num_requests: int) -> dict[str, Any]:
    """Returns the results of each server by its name: texts per second of both loads, latencies of the second."""
    probe, vectors = texts.take(3), {server.name: wait_for(server, texts.take(1)) for server in servers}
    for server in servers:
        vectors[server.name] = server.embed(server.connect(), probe)
        together(server, texts, 1)
    differences = {
        name: max(
            abs(a - b)
            for mine, theirs in zip(vectors[OURS], found, strict=True)
            for a, b in zip(mine, theirs, strict=True)
        )
        for name, found in vectors.items()
    }
    result: dict[str, Any] = {
        server.name: {"difference": differences[server.name], "one": [], "many": [], "p50_ms": [], "p99_ms": []}
        for server in servers
    }
    for number in range(num_rounds):
        for server in [*servers[number % len(servers) :], *servers[: number % len(servers)]]:
            row = result[server.name]
            provided, begin_s = texts.take(NUM_TEXTS), time.perf_counter()
            server.embed(server.connect(), provided)
            row["one"].append(NUM_TEXTS / (time.perf_counter() - begin_s))
            begin_s = time.perf_counter()
            latencies = sorted(together(server, texts, num_requests))
            row["many"].append(len(latencies) / (time.perf_counter() - begin_s))
            row["p50_ms"].append(1000 * statistics.median(latencies))
            row["p99_ms"].append(1000 * latencies[int(0.99 * (len(latencies) - 1))])
    return result


def wait_for(server: Server, texts: Sequence[str]) -> list[Any]:
    deadline_s = time.monotonic() + READY_S
    while True:
        try:
            return server.embed(server.connect(), texts)
        except ConnectionError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)


def together(server: Server, texts: Texts, num_requests: int) -> list[float]:
    """Returns the seconds of each request of clients that send one text after the other."""
    provided = [texts.take(num_requests) for _ in range(NUM_CLIENTS)]
    latencies: list[float] = []

    def run(own: list[str]) -> None:
        connection = server.connect()
        for text in own:
            begin_s = time.perf_counter()
            server.embed(connection, [text])
            latencies.append(time.perf_counter() - begin_s)

    threads = [threading.Thread(target=run, args=(own,)) for own in provided]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(latencies) == NUM_CLIENTS * num_requests, "a request failed"
    return latencies


def show(result: dict[str, Any]) -> None:
    print(f"{'medians':22} {'256 texts/s':>12} {'32 clients/s':>12} {'p50 ms':>8} {'p99 ms':>8} {'difference':>11}")
    for name, row in result.items():
        values = [statistics.median(row[key]) for key in ("one", "many", "p50_ms", "p99_ms")]
        print(
            f"{name:22} {values[0]:12.1f} {values[1]:12.1f} {values[2]:8.0f} {values[3]:8.0f} {row['difference']:11.1e}"
        )


if __name__ == "__main__":
    main()
