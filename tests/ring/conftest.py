"""Real servers for the tests of the whole ring, one for each combination of model and flags in a module."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.server_process import ServerProcess
from tests.checkpoints import build_checkpoint, write_tokenizer
from tests.ring.client import RingClient

READY_TIMEOUT_S = 90.0


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama with a byte-level tokenizer, a context of 256 tokens and end-of-sequence id 2."""
    path = tmp_path_factory.mktemp("tiny-llama")
    build_checkpoint(path, "llama-gqa-tied", max_position_embeddings=256, eos_token_id=2)
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def start_ring() -> Iterator[Callable[..., RingClient]]:
    """Returns a function that starts a server on a model directory with flags; all must exit with 0 at the end."""
    servers: list[ServerProcess] = []

    def start(model_dir: Path, *flags: str) -> RingClient:
        server = ServerProcess(["--model", str(model_dir), "--cpu-threads", "1", *flags])
        servers.append(server)
        target = server.wait_until_ready(READY_TIMEOUT_S)
        return RingClient(f"http://{target.host}:{target.port}", server.run_dir)

    yield start
    exit_codes = [server.stop() for server in servers]
    assert exit_codes == [0] * len(servers), [server.log_text() for server in servers]
