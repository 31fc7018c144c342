"""One frontend process for all tests that leave it as they found it."""

from collections.abc import Iterator

import pytest

from messages.config import HttpConfig
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
