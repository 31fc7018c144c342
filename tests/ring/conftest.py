"""Real servers for the tests of the whole ring, one for each combination of model and flags in a module."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.server_process import ServerProcess
from tests.ring.bad_inputs import MAX_BODY_MB
from tests.ring.client import ADMIN_KEY, RingClient
from tests.tiny_llama import write_tiny_llama

READY_TIMEOUT_S = 90.0
TEST_TIMEOUT_S = 300
"""Many of these tests start processes again and again, and a busy machine takes several times as long for that."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama with a byte-level tokenizer, a context of 256 tokens and end-of-sequence id 2."""
    path = tmp_path_factory.mktemp("tiny-llama")
    write_tiny_llama(path)
    return path


Start = Callable[..., RingClient]


@contextlib.contextmanager
def starting() -> Iterator[Start]:
    """Gives a function that starts a server on a model directory with flags.

    At the end no process may hold anything of a request, and all must exit with 0.
    """
    servers: list[ServerProcess] = []
    clients: list[RingClient] = []

    def start(model_dir: Path, *flags: str) -> RingClient:
        server = ServerProcess(["--model", str(model_dir), "--cpu-threads", "1", *flags])
        servers.append(server)
        target = server.wait_until_ready(READY_TIMEOUT_S)
        clients.append(RingClient(f"http://{target.host}:{target.port}", server.run_dir))
        return clients[-1]

    try:
        yield start
        for client in clients:
            client.wait_until_empty()
    finally:
        exit_codes = [server.stop() for server in servers]
    assert exit_codes == [0] * len(servers), [server.log_text() for server in servers]


@pytest.fixture(scope="module")
def start_ring() -> Iterator[Start]:
    """As `starting`, for the servers of one module."""
    with starting() as start:
        yield start


@pytest.fixture(scope="session")
def plain_ring(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RingClient]:
    """A server for modules that want nothing special, and kill nothing."""
    flags = ("--max-body-mb", str(MAX_BODY_MB), "--snapshot-dir", str(tmp_path_factory.mktemp("on-command")))
    with starting() as start:
        yield start(tiny_checkpoint, "--dtype", "float32", "--admin-key", ADMIN_KEY, *flags)


@pytest.fixture(scope="session")
def snapshot_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `faulty_ring` has its snapshots."""
    return tmp_path_factory.mktemp("snapshots")


@pytest.fixture(scope="session")
def faulty_ring(tiny_checkpoint: Path, snapshot_dir: Path) -> Iterator[RingClient]:
    """A server into which modules inject faults, which they clear again; what stalls is replaced."""
    snapshots = ("--snapshot-dir", str(snapshot_dir), "--max-snapshots", "3")
    stalls = ("--stall-s", "6", "--on-stall", "restart", "--max-restarts-per-min", "100")
    faults = ("--enable-fault-injection", "--sse-keepalive-s", "5", "--admin-key", ADMIN_KEY)
    with starting() as start:
        yield start(tiny_checkpoint, "--dtype", "float32", *faults, *stalls, *snapshots)
