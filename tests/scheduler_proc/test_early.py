"""The process that is begun before its launcher knows the run, as a launcher begins it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 240.0


def run(launcher_pid: int, text: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-X", "importtime", "-m", "scheduler_proc", "--early", f"{launcher_pid}"]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_it_has_imported_torch_when_it_does_what_its_command_line_reports(tmp_path: Path) -> None:
    done = run(os.getpid(), json.dumps(["scheduler_proc", "--run-dir", str(tmp_path)]))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"scheduler_proc: no server runs in {tmp_path}")
    assert "load_runner" in done.stderr


def test_it_ends_with_its_launcher(tmp_path: Path) -> None:
    assert run(1, "").returncode == -signal.SIGKILL, "the launcher was gone before it could ask to be told"
