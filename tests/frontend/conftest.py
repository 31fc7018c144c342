"""One frontend process for all tests that leave it as they found it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from messages.config import HttpConfig, ModelConfig
from tests.frontend.frontend_run import FrontendRun, make_config, wait_until

MAX_BODY_MB = 0.125


@pytest.fixture(scope="session")
def _server() -> Iterator[FrontendRun]:
    with FrontendRun(make_config(HttpConfig(port=0, max_body_mb=MAX_BODY_MB))) as run:
        yield run


@pytest.fixture
def server(_server: FrontendRun) -> Iterator[FrontendRun]:
    """A ready frontend; afterwards it must soon hold no request and nothing may be on its way to the tokenizer."""
    yield _server
    wait_until(lambda: _server.gauge("requests") == 0)
    assert not _server.arrived()


@pytest.fixture(scope="session")
def _reader() -> Iterator[FrontendRun]:
    model = ModelConfig(tool_call_parser="hermes", reasoning_parser="qwen3")
    with FrontendRun(msgspec.structs.replace(make_config(HttpConfig(port=0)), model=model)) as run:
        yield run


@pytest.fixture
def reader(_reader: FrontendRun) -> Iterator[FrontendRun]:
    """A frontend that reads answers of Qwen3; afterwards it must soon hold no request."""
    yield _reader
    wait_until(lambda: _reader.gauge("requests") == 0)
    assert not _reader.arrived()


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
