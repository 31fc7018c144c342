"""A server of several tiny models for tests: its flags, its models' own servers, and its processes."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.server_process import ServerProcess
from runtime.run_dir import RunDir
from tests.ring.client import TIMEOUT_S, RingClient
from tests.ring.conftest import CHEAP
from tests.tiny_llama import write_tiny_llama

READY_TIMEOUT_S = 90.0
NAMES = ("first", "second", "third")
CONTEXT = 2048
FLAGS = (
    *("--dtype", "float32", "--cpu-threads", "1", "--no-standby", "--num-pages", "128"),
    *CHEAP,
    *("--models-memory-gb", "0.005", "--restart-hold-s", "50", "--max-restarts-per-min", "1000"),
)
"""Two of the three models fit: each takes 2 MiB."""


class ModelRing(RingClient):
    """A server of several models."""

    def of(self, name: str) -> RingClient:
        """Returns a client of the model's own server, which is loaded."""
        run_dir = RunDir(self.run_dir.path / "models" / name)
        return RingClient(run_dir.address_file.read_text(encoding="utf-8").strip(), run_dir)

    def what_is_left(self) -> dict[str, float]:
        """Same for the router; the process that starts the models has no gauges."""
        return {name: value for name, value in super().what_is_left().items() if not name.startswith("models.")}

    def get(self, path: str) -> Any:
        reply = httpx.get(f"{self.url}{path}", timeout=TIMEOUT_S)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def post(self, path: str, **content: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=content, timeout=TIMEOUT_S)

    def listed(self) -> dict[str, dict[str, Any]]:
        """Returns the models of `/models` by name."""
        return {model["id"]: model for model in self.get("/models")["data"]}

    def states(self) -> dict[str, str]:
        return {name: model["status"]["value"] for name, model in self.listed().items()}

    def loaded(self) -> set[str]:
        return {name for name, state in self.states().items() if state == "loaded"}

    def metric(self, start: str) -> float:
        """Returns the sum of the samples whose lines begin so."""
        lines = httpx.get(f"{self.url}/metrics", timeout=TIMEOUT_S).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(start))


def wait_for(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """Returns the first true value of `condition`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)
    return value


def write_models(folder: Path, names: Sequence[str] = NAMES, context: int = CONTEXT) -> None:
    """Writes tiny models with different weights."""
    for seed, name in enumerate(names):
        (folder / name).mkdir()
        write_tiny_llama(folder / name, context, seed)


@contextmanager
def model_ring(*arguments: str) -> Iterator[tuple[ServerProcess, ModelRing]]:
    """A server with `FLAGS`. At the end it must hold nothing of a request, and exit with 0."""
    server = ServerProcess([*FLAGS, *arguments])
    try:
        target = server.wait_until_ready(READY_TIMEOUT_S)
        ring = ModelRing(f"http://{target.host}:{target.port}", server.run_dir)
        yield server, ring
        for client in (ring, *map(ring.of, ring.loaded())):
            client.wait_until_empty()
    finally:
        exit_code = server.stop()
    assert exit_code == 0, server.log_text()
    wait_for(lambda: not processes_of(server.run_dir))  # those that a busy machine did not end in time are killed


def processes_of(run_dir: RunDir) -> list[str]:
    """Returns the commands of the processes that name the run directory."""
    found: list[str] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [
                words for words in [file.read_bytes().replace(b"\0", b" ").decode()] if str(run_dir.path) in words
            ]
    return found
