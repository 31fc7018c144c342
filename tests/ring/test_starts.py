"""Starts and stops leave nothing behind (`make starts` has fifty)."""

from pathlib import Path

import pytest

from tests.ring.starts import start_and_stop

pytestmark = pytest.mark.ring

TIMES = 3


@pytest.mark.timeout(300)
def test_each_way_to_stop_leaves_nothing_behind(tiny_checkpoint: Path):
    start_and_stop(tiny_checkpoint, TIMES, print, kill_timeout_s=20.0)
