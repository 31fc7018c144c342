"""One frontend process for all tests that leave it as they found it."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messages.config.server import Config, HttpConfig, ModelConfig
from tests.frontend.frontend_run import FrontendRun, make_config, wait_until

MAX_BODY_MB = 0.125


class SharedRun:
    """A frontend that tests share, one at a time. After a test that did not leave it empty, the next gets a new one."""

    def __init__(self, config: Config):
        self._config = config
        self._run: FrontendRun | None = None

    @contextlib.contextmanager
    def lend(self) -> Iterator[FrontendRun]:
        """Afterwards it must soon be ready and hold no request, and nothing may be on its way to the tokenizer."""
        if self._run is None:
            self._run = FrontendRun(self._config).__enter__()
        run = self._run
        yield run
        try:
            wait_until(lambda: is_as_at_first(run.health()))
            assert not run.arrived()
        except BaseException as error:
            self._run = None
            run.__exit__(type(error), error, None)
            raise

    def close(self) -> None:
        if self._run is not None:
            self._run.__exit__(None, None, None)


def is_as_at_first(health: dict[str, Any]) -> bool:
    return health["status"] == "ready" and health["processes"]["frontend"]["gauges"]["requests"] == 0


@pytest.fixture(scope="session")
def _server() -> Iterator[SharedRun]:
    with contextlib.closing(SharedRun(make_config(HttpConfig(port=0, max_body_mb=MAX_BODY_MB)))) as shared:
        yield shared


@pytest.fixture
def server(_server: SharedRun) -> Iterator[FrontendRun]:
    """A ready frontend, to be left without requests."""
    with _server.lend() as run:
        yield run


@pytest.fixture(scope="session")
def _reader() -> Iterator[SharedRun]:
    model = ModelConfig(tool_call_parser="hermes", reasoning_parser="qwen3")
    config = msgspec.structs.replace(make_config(HttpConfig(port=0)), model=model)
    with contextlib.closing(SharedRun(config)) as shared:
        yield shared


@pytest.fixture
def reader(_reader: SharedRun) -> Iterator[FrontendRun]:
    """A frontend that reads answers of Qwen3, to be left without requests."""
    with _reader.lend() as run:
        yield run


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("needs openssl, to make a certificate")
    return cert, key
