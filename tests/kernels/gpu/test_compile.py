"""The kernels as a Hopper GPU would run them: compiled with no GPU, at every shape and configuration in use."""

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from kernels.gpu.forms import NAMES

JOBS, TIMEOUT_S = 2, 600


@cache
def make_report() -> dict[str, list[dict[str, Any]]]:
    """Returns the lines of each operation; in a process of its own, for here kernels are interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.gpu.compile_report", "--jobs", str(JOBS), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False)
    assert done.stdout, done.stderr
    lines: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    for line in json.loads(done.stdout):
        lines[line["name"]].append(line)
    return lines


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("name", NAMES)
def test_compiles_for_hopper_within_its_bounds(name: str) -> None:
    lines = make_report()[name]
    assert lines, f"kernels/gpu/{name}.py lists no COMPILE_CASES"
    assert len({line["label"] for line in lines}) == len(lines)
    for line in lines:
        assert not line["complaints"], f"{line['label']}: {line['complaints']} {line['compiled']}"
