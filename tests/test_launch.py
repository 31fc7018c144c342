"""The launcher as people use it: `python launch.py`, its exit codes and messages, and one real server."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.run_dir import RunDir
from tests.supervisor.fake_run import is_running, wait_until

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, str(ROOT / "launch.py")]
TIMEOUT_S = 60.0


def launch(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def write_model(directory: Path) -> str:
    (directory / "config.json").write_text('{"vocab_size": 7, "n_positions": 8, "architectures": ["Unheard"]}')
    return str(directory)


def test_a_wrong_flag_is_one_line_and_exit_code_2():
    result = launch("--prot", "80")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == "launch.py: --prot: unknown flag; did you mean --port?\n"


@pytest.mark.parametrize("has_venv", [True, False])
def test_a_python_without_the_libraries_hands_over_to_that_of_the_venv_or_reports_what_to_do(
    tmp_path: Path, has_venv: bool
):
    shutil.copy(ROOT / "launch.py", tmp_path)
    shutil.copytree(ROOT / "supervisor", tmp_path / "supervisor")
    python = tmp_path / ".venv" / "bin" / "python"
    if has_venv:
        python.parent.mkdir(parents=True)
        python.write_text('#!/bin/sh\necho "own python: $@"')
        python.chmod(0o755)
        (tmp_path / ".venv" / "pyvenv.cfg").touch()
    command = [sys.executable, "-S", str(tmp_path / "launch.py"), "--port", "80"]  # without site-packages
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if has_venv:
        assert (result.returncode, result.stdout) == (0, f"own python: {tmp_path / 'launch.py'} --port 80\n")
    else:
        assert (result.returncode, result.stdout) == (1, "")
        assert f"Run `make serve` in {tmp_path}" in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_are_standard_output(flag: str):
    result = launch(flag)
    assert result.returncode == 0
    assert result.stdout
    assert result.stderr == ""


def test_a_context_that_the_model_does_not_have_is_a_wrong_flag(tmp_path: Path):
    result = launch("--model", write_model(tmp_path), "--max-model-len", "9", "--port", "0")
    assert result.returncode == 2
    assert result.stderr.startswith("launch.py: --max-model-len: 9 is more than the model's context of 8 tokens")


def test_a_name_that_is_nowhere_ends_in_time_with_one_message(tmp_path: Path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{probe.getsockname()[1]}"
        began_s = time.monotonic()
        result = launch("--model", "gpt2", cwd=tmp_path, HF_HOME=str(tmp_path), HF_ENDPOINT=endpoint)
    assert time.monotonic() - began_s < 40
    assert result.returncode == 1
    assert result.stdout == ""
    reported, message = result.stderr.split("\n", 1)
    assert reported == "fetching gpt2 from the hub, or from its cache"
    assert message.startswith("launch.py: cannot find the model 'gpt2'. Looked for\n")
    assert "Traceback" not in result.stderr


def test_a_port_in_use_is_notified_before_any_process_starts(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = launch("--model", write_model(tmp_path), "--port", str(port), XDG_RUNTIME_DIR="/tmp")
    assert result.returncode == 1
    assert result.stderr == (
        f"launch.py: port {port} is in use by another program; choose another --port (0: any free one)\n"
    )


def test_the_launcher_loads_nothing_heavy():
    heavy = ["torch", "numpy", "transformers", "tokenizers", "starlette", "uvicorn", "huggingface_hub"]
    code = f"import launch, sys; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


class RealServer:
    """A server of real processes on a free port, which a test stops or kills."""

    def __init__(self, model: Path, run_path: Path, *flags: str, root: Path = ROOT):
        self.run_dir = RunDir(run_path)
        self.log = run_path.with_suffix(".log")
        arguments = ["--model", str(model), "--port", "0", "--run-dir", str(run_path), "--device", "cpu", *flags]
        with self.log.open("wb") as log:
            command = [sys.executable, str(root / "launch.py"), *arguments]
            self.launcher = subprocess.Popen(command, cwd="/", stdout=log, stderr=log)

    @property
    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.text or self.launcher.poll() is not None, TIMEOUT_S)
        assert text in self.text, self.text

    def generate(self) -> dict[str, object]:
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": 8, "stream": False, "temperature": 0})
        url = self.run_dir.address_file.read_text().strip()
        request = urllib.request.Request(f"{url}/generate", body.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return json.loads(reply.read())

    def generate_when_it_can(self) -> dict[str, object]:
        """Like `generate`, but retries after a 503, which a busy machine may cause at any time."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return self.generate()
            except urllib.error.HTTPError as error:
                if error.code != 503 or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def is_ready(self) -> bool:
        url = self.run_dir.address_file.read_text().strip()
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=TIMEOUT_S):
                return True
        except urllib.error.HTTPError:
            return False

    def close(self) -> None:
        pids = self.run_dir.pids().values()
        if self.launcher.poll() is None:
            self.launcher.kill()
        self.launcher.wait()
        wait_until(lambda: not any(map(is_running, pids)))


CORE = (
    *("detokenizer_proc", "frontend", "kernels", "messages", "runtime", "scheduler_proc", "supervisor"),
    "tokenizer_proc",
)
FLAG_OF_AN_EXTRA = "--otlp-endpoint"


@pytest.fixture
def core(tmp_path: Path) -> Path:
    """The program without the folder `extras`."""
    for name in CORE:
        shutil.copytree(ROOT / name, tmp_path / "core" / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "launch.py", tmp_path / "core")
    return tmp_path / "core"


def test_without_extras_there_are_none_of_their_flags_and_commands(core: Path):
    command = [sys.executable, str(core / "launch.py")]
    shown, refused = (
        subprocess.run([*command, *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        for words in (["--help-all"], ["batch"])
    )
    assert FLAG_OF_AN_EXTRA in launch("--help-all").stdout
    assert FLAG_OF_AN_EXTRA not in shown.stdout
    assert "--max-num-seqs" in shown.stdout
    assert "Others:" not in shown.stdout
    assert "commands are ps, logs, drain, restart, scale, snapshot, log-level, profile; each" in refused.stderr


@pytest.mark.ring
@pytest.mark.shared
def test_the_core_serves_without_extras(core: Path, shared_dir: Path, tmp_path: Path):
    server = RealServer(
        shared_dir / "models" / "tinystories-656k-llama", tmp_path / "run", "--num-pages", "64", root=core
    )
    try:
        server.wait_for("stop     Ctrl-C")
        assert server.generate()["text"]
        server.launcher.send_signal(signal.SIGINT)
        assert server.launcher.wait(TIMEOUT_S) == 0, server.text
        assert "Traceback" not in server.text
    finally:
        server.close()


@pytest.fixture
def server(shared_dir: Path, tmp_path: Path) -> Iterator[RealServer]:
    server = RealServer(shared_dir / "models" / "tinystories-656k-llama", tmp_path / "run", "--num-pages", "64")
    yield server
    server.close()


DEATHS = {
    "tokenizer": signal.SIGTERM,
    "scheduler": signal.SIGKILL,
    "detokenizer": signal.SIGKILL,
    "frontend": signal.SIGTERM,
}


@pytest.mark.ring
@pytest.mark.shared
def test_a_real_server_outlives_the_death_of_each_of_its_processes_and_ends_with_ctrl_c(server: RealServer):
    server.wait_for("stop     Ctrl-C")
    assert server.run_dir.pids().keys() == DEATHS.keys()
    before = server.generate()
    assert before["text"]
    for num_deaths, (name, number) in enumerate(DEATHS.items(), start=1):
        pid = server.run_dir.pids()[name]
        os.kill(pid, number)
        wait_until(lambda name=name: len(re.findall(rf"^{name} +ready in", server.text, re.MULTILINE)) == 2, TIMEOUT_S)
        assert server.run_dir.pids()[name] != pid
        assert f"restarting in 0 s ({num_deaths} of 10 a minute)" in server.text
        wait_until(server.is_ready, TIMEOUT_S)
        assert server.generate_when_it_can()["text"] == before["text"]
    pids, length = server.run_dir.pids(), len(server.text)
    server.launcher.send_signal(signal.SIGINT)
    assert server.launcher.wait(TIMEOUT_S) == 0, server.text
    assert not any(map(is_running, pids.values()))
    assert not server.run_dir.path.exists()
    assert "killed" not in server.text[length:]
    assert "Traceback" not in server.text


@pytest.mark.ring
@pytest.mark.shared
def test_nothing_is_left_of_a_real_server_whose_launcher_was_killed(server: RealServer):
    """While the server starts, with a stopped process; `tests/ring/test_starts.py` does this under load."""
    server.wait_for("scheduler    importing torch")
    wait_until(lambda: len(server.run_dir.pids()) == 4)
    pids = server.run_dir.pids()
    os.kill(pids["tokenizer"], signal.SIGSTOP)
    server.launcher.kill()
    wait_until(lambda: not any(map(is_running, pids.values())) and not server.run_dir.path.exists(), TIMEOUT_S)
