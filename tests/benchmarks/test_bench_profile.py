"""The measurement against a server that counts what it is asked."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.bench_profile import Client, measure


class CountingServer(ThreadingHTTPServer):
    def __init__(self, trace: Path):
        super().__init__(("127.0.0.1", 0), CountingPage)
        self.trace = trace
        self.asked: list[str] = []


class CountingPage(BaseHTTPRequestHandler):
    server: CountingServer

    def do_POST(self) -> None:
        assert self.headers["Authorization"] == "Bearer a-key"
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(self.path)
        if self.path == "/stop_profile":
            self.server.trace.touch()
        body = json.dumps({"file": str(self.server.trace)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CountingServer]:
    with CountingServer(tmp_path / "trace.json") as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join(30.0)


def test_batches_with_and_without_a_profile_take_turns(server: CountingServer):
    client = Client(f"http://127.0.0.1:{server.server_port}", "a-key", num_streams=3, num_tokens=10)
    cost = measure(client, num_streams=3, num_tokens=10, num_rounds=2)
    assert Counter(server.asked) == {"/generate": 3 * 5, "/start_profile": 2, "/stop_profile": 2}
    profiles = [path for path in server.asked if path != "/generate"]
    assert profiles == ["/start_profile", "/stop_profile"] * 2
    assert server.asked.index("/start_profile") == 6
    assert len(cost.tokens_per_s_off) == len(cost.tokens_per_s_on) == 2
    assert not server.trace.exists(), "traces are not left behind"
