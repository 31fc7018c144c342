"""Fixtures of the benchmarks' tests."""

import sys
from collections.abc import Callable

import pytest

from benchmarks import server_process
from benchmarks.load.connection import Target
from benchmarks.load.paced_server import paced_server


@pytest.fixture
def launch_fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the benchmarks start the fake launcher, with the behaviour that is asked for."""

    def choose(behaviour: str) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.fake_launcher", behaviour]
        monkeypatch.setattr(server_process, "LAUNCH", command)

    return choose


@pytest.fixture(scope="module")
def paced_target():
    """A trivial server in its own process, a token every 2 ms a stream."""
    with paced_server(2.0) as target:
        assert isinstance(target, Target)
        yield target
