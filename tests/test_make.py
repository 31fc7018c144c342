"""`make test` and the targets for a GPU: what they run, and that they fail where it does."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PYTHON = """#!/bin/sh
echo "ran $PYTHONDONTWRITEBYTECODE$*"
exit $CODE
"""


@pytest.mark.parametrize("code", [0, 1, 5])
def test_all_tests_run_and_must_pass(tmp_path: Path, code: int) -> None:
    """pytest's 5 says that no test ran. No process compiles what it imports again and again."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    binaries = tmp_path / ".venv/bin"
    binaries.mkdir(parents=True)
    (binaries / "python").write_text(PYTHON, encoding="ascii")
    (binaries / "python").chmod(0o755)
    (tmp_path / ".venv/.dev").touch()
    environment = {**os.environ, "CODE": str(code), "MAKEFLAGS": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        ["make", "test"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode == 0) == (code == 0)
    assert [line for line in done.stdout.splitlines() if line.startswith("ran ")] == [
        "ran -m pytest -n 4 --dist loadfile --no-loadscope-reorder --durations=25"
    ]


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("test-gpu", "-m tests.gpu_tests"),
        ("bench-gpu", "-m benchmarks.run_gpu"),
        ("gpu-wheels", "-m tools.gpu_wheels fetch"),
        ("gpu-install", "-m tools.gpu_wheels install"),
    ],
)
def test_what_is_for_a_gpu_runs_on_the_python_that_is_named(tmp_path: Path, target: str, command: str) -> None:
    """No environment is set up there; what gpu-install has installed is found, and then what was to be found before."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = tmp_path / "some-python"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH ran $*"\n', encoding="ascii")
    python.chmod(0o755)
    done = subprocess.run(
        ["make", "-s", target, f"PYTHON={python}", "ARGS=--more"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": "/before", "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    site = "" if target.startswith("gpu-") else f"{tmp_path}/build/gpu-site:"
    assert done.stdout == f"{site}/before ran {command} --more\n", done.stderr
