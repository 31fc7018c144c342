"""Real servers for the tests of the whole ring: some per session, others per module with other flags."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.server_process import OpenProcess, ServerProcess
from messages.config.scheduling import SchedulingConfig
from tests.fork_host import ForkHost
from tests.ring.bad_inputs import MAX_BODY_MB
from tests.ring.client import ADMIN_KEY, BARD, BARD_DIR, RingClient
from tests.tiny_llama import write_tiny_llama
from tests.vision_models import make_vision_model

READY_TIMEOUT_S = 90.0
HOLD_S = 50
"""Requests wait so long for a process to be replaced: a start may be slow on a busy machine, and clients wait longer.
"""

CHEAP = ("--kv-populate", "never", "--speculative", "none")
"""Most servers here run for seconds and fill little of their cache; many tests count steps of one token a row."""

SPECULATIVE = ("--speculative", SchedulingConfig().speculative)
"""After `CHEAP`: draft tokens, as by default."""

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
def starting(open_process: OpenProcess = subprocess.Popen) -> Iterator[Start]:
    """Gives a function that starts a server on a model directory with flags, by default as users do.

    At the end no process may hold anything of a request, and all must exit with 0.
    """
    servers: list[ServerProcess] = []
    clients: list[RingClient] = []

    def start(model_dir: Path, *flags: str) -> RingClient:
        own = ("--cpu-threads", "1", "--no-standby", "--restart-hold-s", str(HOLD_S), *CHEAP)
        arguments = ["--model", str(model_dir), *own, *flags]
        server = ServerProcess(arguments, has_own_session=True, open_process=open_process)
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


@pytest.fixture(scope="session")
def fork_host() -> Iterator[ForkHost]:
    """Forks servers, in a seventh of the CPU time of a start."""
    with ForkHost() as host:
        yield host


@pytest.fixture(scope="module")
def start_ring(fork_host: ForkHost) -> Iterator[Start]:
    """Like `starting`, for the servers of one module. Their processes are forks, as those of `--models`."""
    with starting(fork_host.open) as start:
        yield start


@pytest.fixture(scope="module")
def launch_ring() -> Iterator[Start]:
    """Like `start_ring`, by `launch.py`: for modules that concern starts, standbys or the memory of processes."""
    with starting() as start:
        yield start


@pytest.fixture(scope="session")
def plain_ring(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RingClient]:
    """A server for modules without special needs that kill nothing."""
    flags = ("--max-body-mb", str(MAX_BODY_MB), "--snapshot-dir", str(tmp_path_factory.mktemp("on-command")))
    pages = ("--cors-allow-origins", "http://page.example", "--allowed-hosts", "llm.example")
    with starting() as start:
        yield start(tiny_checkpoint, "--dtype", "float32", "--admin-key", ADMIN_KEY, *flags, *pages)


@pytest.fixture(scope="session")
def bard_ring() -> Iterator[RingClient]:
    """A server of the bundled model, for modules that need sensible text."""
    flags = ("--served-model-name", BARD, "--max-restarts-per-min", "100", "--tool-call-parser", "hermes")
    with starting() as start:
        yield start(BARD_DIR, "--dtype", "float32", *SPECULATIVE, *flags)


@pytest.fixture(scope="session")
def image_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of `image_ring`, with its images."""
    return tmp_path_factory.mktemp("recording") / "run"


@pytest.fixture(scope="session")
def image_ring(image_recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RingClient]:
    """A server of a model that reads images."""
    model = make_vision_model("idefics3", tmp_path_factory.mktemp("vision") / "model")
    flags = ("--served-model-name", "m", "--record", str(image_recording), "--record-images-mb", "10")
    with starting() as start:
        yield start(model, "--dtype", "float32", *flags)


RESTART_FLAGS = ("--dtype", "float32", "--drain-timeout-s", "20", "--max-restarts-per-min", "100")


@pytest.fixture(scope="session")
def restarted_ring(tiny_checkpoint: Path) -> Iterator[RingClient]:
    """A server for modules that kill and replace its processes."""
    with starting() as start:
        yield start(tiny_checkpoint, *RESTART_FLAGS, "--hang-timeout-s", "8", "--admin-key", ADMIN_KEY)


@pytest.fixture(scope="session")
def twin_ring(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RingClient]:
    """Like `restarted_ring`, with two frontends, batches and faults, which modules must clear."""
    twins = ("--frontend-workers", "2", "--hang-timeout-s", "8", "--enable-fault-injection")
    batches = ("--batch-dir", str(tmp_path_factory.mktemp("batches")), "--max-batch-seqs", "4")
    with starting() as start:
        yield start(tiny_checkpoint, *RESTART_FLAGS, *twins, *batches, "--admin-key", ADMIN_KEY)


@pytest.fixture(scope="session")
def snapshot_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The snapshot directory of `faulty_ring`."""
    return tmp_path_factory.mktemp("snapshots")


@pytest.fixture(scope="session")
def faulty_ring(tiny_checkpoint: Path, snapshot_dir: Path) -> Iterator[RingClient]:
    """A server into which modules inject faults, which they must clear. Stalled processes are replaced."""
    snapshots = ("--snapshot-dir", str(snapshot_dir), "--max-snapshots", "3")
    stalls = ("--stall-s", "6", "--on-stall", "restart", "--max-restarts-per-min", "100")
    faults = ("--enable-fault-injection", "--sse-keepalive-s", "5", "--admin-key", ADMIN_KEY)
    with starting() as start:
        yield start(tiny_checkpoint, "--dtype", "float32", *faults, *stalls, *snapshots)
