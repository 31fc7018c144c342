"""No count of what serving costs is above its limit (`tests/serving_counts.py`)."""

import subprocess
import sys


def test_no_count_is_above_its_limit():
    """In a new process: what other tests have loaded and patched makes calls of its own."""
    command = [sys.executable, "-m", "tests.serving_counts"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
