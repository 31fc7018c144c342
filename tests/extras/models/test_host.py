"""The host with real servers of a tiny model, which it forks: their descriptions, starts, ends and errors."""

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from extras.models.config import ModelsConfig
from extras.models.messages import DescribeModel, ModelReport, Models, StartModel, StopModel, WatchModels
from extras.models.server import HOST
from messages.channels import AskClient, Waiter
from messages.config.server import Config
from messages.control.processes import Ready
from runtime.run_dir import RunDir
from supervisor.client.running import choose_server
from supervisor.flags import parse_flags
from supervisor.run import build_config
from tests.fake_launcher import FakeLauncher
from tests.ring.client import http_client
from tests.tiny_llama import write_tiny_llama

pytestmark = [pytest.mark.ring, pytest.mark.timeout(300)]

HUGE_PAGE = 2 << 20
TIMEOUT_S = 60.0
FLAGS = ("--cpu-threads", "1", "--kv-populate", "never", "--max-num-seqs", "2", "--dtype", "float32")
FLAGS += ("--restart-hold-s", "50")


class HostClient:
    """A router that only watches and orders."""

    def __init__(self, launcher: FakeLauncher):
        self.launcher = launcher
        self.run_dir = launcher.run_dir
        self.history: list[tuple[str, str, str]] = []
        """Name, process and error of each report that differs from the one before."""
        self._reports: dict[str, ModelReport] = {}
        self._client: AskClient[Models] = AskClient(self.run_dir.socket(HOST), Models)
        self._waiter = Waiter()
        self._waiter.add_channel(self._client)

    def begin(self) -> int:
        """Starts a host; returns its pid."""
        process = self.launcher.start("extras.models.host")
        self.launcher.processes[HOST] = self.launcher.processes.pop("extras.models.host")
        self.launcher.wait_for(HOST, Ready, TIMEOUT_S)
        self._reports.clear()
        self.ask(WatchModels())
        return process.pid

    def ask(self, message: Any) -> None:
        self._client.ask(message)

    def close(self) -> None:
        self._client.close()

    def wait(self, name: str, is_reached: Callable[[ModelReport], object]) -> ModelReport:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            for message in self._client.receive():
                for report in message.models:
                    state = (report.name, report.process, report.error)
                    if state not in self.history[-1:]:
                        self.history.append(state)
                    self._reports[report.name] = report
            report = self._reports.get(name)
            if report is not None and is_reached(report):
                return report
            assert time.monotonic() < deadline, (report, self.launcher.log_text("extras.models.host"))
            self._waiter.wait(0.1)

    def start(self, name: str) -> ModelReport:
        """Starts a model's server and waits until it serves."""
        self.wait(name, lambda report: report.description)
        self.ask(StartModel(name))
        report = self.wait(name, lambda report: report.url)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            self._waiter.wait(0.02)
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as tried:
                tried.connect(report.url.removeprefix("unix:"))
                with http_client(report.url) as client:
                    if client.get("/ping").status_code == 200:
                        return report
            assert time.monotonic() < deadline, self.launcher.log_text("extras.models.host")

    def stop(self, name: str) -> ModelReport:
        self.ask(StopModel(name))
        return self.wait(name, lambda report: report.process == "none")


def complete(report: ModelReport, prompt: str = "to be", max_tokens: int = 8) -> str:
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    with http_client(report.url) as client:
        response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["model"] == report.name
    return answer["choices"][0]["text"]


def processes_of(run_dir: Path) -> list[psutil.Process]:
    """Returns the processes whose command lines name a directory."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter(["cmdline"]):
        if str(run_dir) in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


def make_config(folder: Path) -> Config:
    write_tiny_llama(folder / "a")
    write_tiny_llama(folder / "b")
    write_tiny_llama(folder / "foreign")
    foreign = folder / "foreign" / "config.json"
    foreign.write_text(foreign.read_text().replace("LlamaForCausalLM", "StableLmForCausalLM"))
    (folder / "broken" / "config.json").write_text('{"model_type": "llama"}')
    write_tiny_llama(folder / "slow")
    write_slow_tokenizer(folder / "slow")
    file = folder / "models.toml"
    file.write_text(
        "[models.a]\nmodel = 'a'\nnum-pages = 40\n[models.'org/b']\nmodel = 'b'\n[models.broken]\nmodel = 'broken'\n"
        "[models.foreign]\nmodel = 'foreign'\n[models.small]\nmodel = 'a'\nnum-pages = 1\n"
        "[models.hub]\nmodel = 'org/not-in-the-cache'\n"
        "[models.slow]\nmodel = 'slow'\nnum-pages = 40\n"
    )
    return build_config(parse_flags(["--models", str(file), "--models-memory-gb", "0.001", *FLAGS]))


def write_slow_tokenizer(model: Path) -> None:
    """Leaves only files of which transformers makes the tokenizer."""
    fields = json.loads((model / "tokenizer.json").read_text())["model"]
    (model / "vocab.json").write_text(json.dumps(fields["vocab"]))
    (model / "merges.txt").write_text("#version: 0.2\n")
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostClient]:
    folder = tmp_path_factory.mktemp("models")
    for name in ("a", "b", "broken", "foreign", "slow"):
        (folder / name).mkdir()
    with FakeLauncher(make_config(folder)) as launcher:
        client = HostClient(launcher)
        client.begin()
        yield client
        client.close()


@pytest.fixture(scope="module")
def loaded(host: HostClient) -> ModelReport:
    """The first model, which serves until a test ends it."""
    return host.start("a")


def test_a_description_has_the_bytes_that_the_server_takes(host: HostClient, loaded: ModelReport):
    description = loaded.description
    assert description is not None
    assert description.error == ""
    run_dir = RunDir(Path(loaded.run_dir))
    for file, num_bytes in (
        (run_dir.weights_file, description.weight_bytes),
        (run_dir.kv_file("scheduler"), description.cache_bytes),
    ):
        assert num_bytes <= file.stat().st_size <= num_bytes + 2 * HUGE_PAGE
    assert description.num_bytes == description.weight_bytes + description.cache_bytes


def test_without_flags_the_cache_has_an_eighth_of_the_memory_but_a_whole_request_at_least(host: HostClient):
    description = host.wait("org/b", lambda report: report.description).description
    assert description is not None
    config = RunDir(Path(description.config_file).parent).read_config()
    pages_per_request = 256 // config.cache.block_size
    assert config.cache.num_pages == pages_per_request  # an eighth of 1 MiB is less
    a = host.wait("a", lambda report: report.description).description
    assert a is not None
    assert description.cache_bytes * 40 == a.cache_bytes * pages_per_request


def test_a_model_that_transformers_computes_has_a_part_of_the_memory_for_its_cache(host: HostClient):
    description = host.wait("foreign", lambda report: report.description).description
    assert description is not None
    assert description.error == ""
    assert description.weight_bytes > 0
    cache = RunDir(Path(description.config_file).parent).read_config().cache
    assert cache.num_pages is None
    assert int((cache.kv_cache_memory_gb or 0) * 2**30) == pytest.approx(description.cache_bytes, abs=1)


def test_models_that_cannot_be_served_have_a_reason(host: HostClient):
    broken = host.wait("broken", lambda report: report.description).description
    small = host.wait("small", lambda report: report.description).description
    assert broken is not None
    assert small is not None
    assert "config.json: vocab_size is missing" in broken.error
    assert "too small for one request of full length: --num-pages 1" in small.error
    assert broken.config_file == small.config_file == ""
    assert f"broken       cannot be served: {broken.error}" in host.launcher.log_text("extras.models.host")
    host.ask(StartModel("broken"))
    host.ask(StopModel("broken"))
    host.ask(StartModel("no such model"))
    assert host.wait("broken", bool).process == "none"


def test_files_that_have_been_mended_are_read_again(host: HostClient):
    host.wait("broken", lambda report: report.description)
    entries = {entry.name: entry for entry in ModelsConfig.of(host.run_dir.read_config()).entries}
    write_tiny_llama(Path(entries["broken"].flags[0].removeprefix("--model=")))
    host.ask(DescribeModel("broken"))
    host.wait("broken", lambda report: report.description and not report.description.error)


def test_a_model_of_the_hub_is_looked_up_when_it_is_requested(host: HostClient, monkeypatch: pytest.MonkeyPatch):
    host.wait("small", lambda report: report.description)  # those before it
    assert host.wait("hub", bool).description is None
    host.ask(DescribeModel("hub"))
    description = host.wait("hub", lambda report: report.description).description
    assert description is not None
    assert "org/not-in-the-cache" in description.error


def test_its_server_is_one_like_others(host: HostClient, loaded: ModelReport):
    text = complete(loaded)
    assert len(text) > 0
    assert complete(loaded) == text
    run_dir = RunDir(Path(loaded.run_dir))
    assert run_dir.path.parent == host.run_dir.path / "models"
    assert choose_server(run_dir.path, None).config.facts.served_names == ("a",)
    names = {"frontend", "tokenizer", "scheduler", "detokenizer"}
    assert set(run_dir.pids()) == names
    launcher = psutil.Process(loaded.pid)
    assert {child.pid for child in launcher.children()} == set(run_dir.pids().values())
    shown = {" ".join(process.cmdline()).split()[2] for process in launcher.children()}
    assert shown == {"frontend", "tokenizer_proc", "scheduler_proc", "detokenizer_proc"}


def test_a_tokenizer_that_transformers_makes_is_made_in_a_fork_too(host: HostClient):
    report = host.start("slow")
    assert complete(report)
    pid = RunDir(Path(report.run_dir)).pids()["tokenizer"]
    os.kill(pid, signal.SIGKILL)
    assert complete(report)
    host.stop("slow")


def test_a_process_that_dies_is_forked_again(host: HostClient, loaded: ModelReport):
    text = complete(loaded)
    run_dir = RunDir(Path(loaded.run_dir))
    for name in ("scheduler", "tokenizer"):
        pid = run_dir.pids()[name]
        os.kill(pid, signal.SIGKILL)
        assert complete(loaded) == text
        assert run_dir.pids()[name] != pid


def test_a_crash_of_one_model_touches_no_other(host: HostClient, loaded: ModelReport):
    other = host.start("org/b")
    assert Path(other.run_dir).name == "org_b"
    os.kill(other.pid, signal.SIGKILL)
    ended = host.wait("org/b", lambda report: report.process == "none")
    assert "killed by SIGKILL" in ended.error
    assert f"org/b        {ended.error}" in host.launcher.log_text("extras.models.host")
    assert complete(loaded)
    assert host.wait("a", bool).pid == loaded.pid
    again = host.start("org/b")
    assert again.error == ""
    assert complete(again)
    stopped = host.stop("org/b")
    assert stopped.error == ""
    assert not Path(stopped.run_dir).exists()
    assert not processes_of(Path(stopped.run_dir))
    log = host.launcher.log_text("extras.models.host")
    assert "org/b        unloaded" in log
    assert "Ctrl-C" not in log
    host.stop("org/b")  # a no-op
    os.kill(host.start("org/b").pid, signal.SIGTERM)
    assert host.wait("org/b", lambda report: report.process == "none").error == "", "an operator has ended it"


def test_files_that_have_changed_are_read_again_before_the_model_is_loaded(host: HostClient):
    before = host.wait("org/b", lambda report: report.description).description
    assert before is not None
    file = Path(RunDir(Path(before.config_file).parent).read_config().facts.model_dir) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_position_embeddings": 128}))
    host.ask(StartModel("org/b"))
    report = host.wait("org/b", lambda report: report.description and report.description.stamp != before.stamp)
    assert report.process == "none"
    assert RunDir(Path(before.config_file).parent).read_config().facts.max_model_len == 128
    assert complete(host.start("org/b"))
    host.stop("org/b")


def test_a_server_that_cannot_start_reports_why_after_it_ran(host: HostClient):
    description = host.wait("org/b", lambda report: report.description).description
    assert description is not None
    config = RunDir(Path(description.config_file).parent).read_config()
    weights = Path(config.facts.model_dir) / "model.safetensors"
    kept = weights.rename(weights.with_suffix(".kept"))
    host.history.clear()
    host.ask(StartModel("org/b"))
    report = host.wait("org/b", lambda report: report.error)
    kept.rename(weights)
    assert report.process == "none"
    assert "scheduler cannot start: " in report.error
    assert "safetensors" in report.error
    assert ("org/b", "running", "") in host.history


def test_a_new_host_finds_the_servers_of_the_one_before(host: HostClient, loaded: ModelReport):
    text = complete(loaded)
    os.kill(host.launcher.processes[HOST].pid, signal.SIGKILL)
    host.launcher.wait_exit(HOST)
    assert complete(loaded) == text
    host.begin()
    found = host.wait("a", lambda report: report.url)
    assert (found.pid, found.url, found.description) == (loaded.pid, loaded.url, loaded.description)
    os.kill(found.pid, signal.SIGKILL)
    assert "has ended" in host.wait("a", lambda report: report.process == "none").error
    assert host.start("a").pid != loaded.pid


def test_servers_end_with_the_launcher(host: HostClient):
    """The fake launcher gives up the lifeline, as its death would."""
    report = host.start("a")
    assert processes_of(host.run_dir.path)
    pid = report.pid
    host.launcher.abandon()
    deadline = time.monotonic() + TIMEOUT_S
    while processes_of(host.run_dir.path) or host.run_dir.path.exists():
        assert time.monotonic() < deadline, processes_of(host.run_dir.path)
        with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            psutil.Process(pid).wait(0.1)
    host.launcher.processes[HOST].wait(TIMEOUT_S)
    host.launcher.processes.pop(HOST)
