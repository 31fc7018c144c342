"""A real server of several models: loads and unloads for memory, requests and commands, and deaths of all kinds."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import psutil
import pytest

from benchmarks.server_process import ROOT, is_running
from tests.lora_adapters import write_adapter
from tests.ring.browser import require_browser
from tests.ring.client import TIMEOUT_S, Generated, body
from tests.ring.devtools import BrowserPage
from tests.ring.model_ring import NAMES, ModelRing, model_ring, wait_for, write_models

pytestmark = pytest.mark.ring

PROMPT = list(range(3, 40))
LONG = 1900
"""Number of tokens of a stream that is still running when the test stops its scheduler."""

TABLES = """
[models.first]
model = "first"
lora = ["poems={adapter}"]

[models.second]
model = "second"
max-model-len = 1999

[models.third]
model = "third"

[models.huge]
model = "third"
num-pages = 5000
"""


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelRing]:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    adapter = write_adapter(folder / "poems", folder / "first", seed=5)
    (folder / "models.toml").write_text(TABLES.format(adapter=adapter), encoding="utf-8")
    with model_ring("--models", str(folder / "models.toml")) as (_, ring):
        yield ring


@pytest.fixture(scope="module")
def expected(ring: ModelRing) -> dict[str, Generated]:
    """What each model answers, loaded one after another."""
    return {name: ring.generate(PROMPT, max_tokens=20, model=name) for name in (*NAMES, "poems")}


def check(ring: ModelRing, expected: dict[str, Generated], *names: str) -> None:
    for name in names:
        found = ring.generate(PROMPT, max_tokens=20, model=name)
        assert (found.text, found.token_ids) == (expected[name].text, expected[name].token_ids)


def check_memory(ring: ModelRing, *names: str) -> None:
    """The memory of the whole server includes that of the models."""
    flags = ((), *(("--model", name) for name in names))
    whole, *models = (json.loads(launch(ring, "ps", "--json", *which))["memory_bytes"] for which in flags)
    assert whole > sum(models) > 0


def launch(ring: ModelRing, *arguments: str) -> str:
    """Returns the output of a command for the running server."""
    command = [sys.executable, str(ROOT / "launch.py"), *arguments, "--run-dir", str(ring.run_dir.path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


class Stream:
    """An answer of which the client has read only the beginning."""

    def __init__(self, ring: ModelRing, model: str):
        content = body(PROMPT, model=model, max_tokens=LONG, ignore_eos=True)
        self._reply = httpx.stream("POST", f"{ring.url}/generate", json=content, timeout=TIMEOUT_S)
        self._lines = self._reply.__enter__().iter_lines()
        next(self._lines)

    def read(self) -> int:
        """Returns the number of its events, which must be all."""
        lines = [line for line in self._lines if line.startswith("data: ")]
        self._reply.__exit__(None, None, None)
        assert lines[-1] == "data: [DONE]"
        return len(lines)


def test_the_first_request_loads_and_the_least_recently_used_goes(ring: ModelRing):
    wait_for(lambda: all("size" in model for model in ring.listed().values()))
    assert ring.states() == dict.fromkeys((*NAMES, "huge"), "unloaded")
    reply = ring.post("/generate", **body(PROMPT, model="first", max_tokens=2, stream=False))
    assert int(float(reply.headers["X-Model-Load-Ms"])) > 0
    reply = ring.post("/generate", **body(PROMPT, model="first", max_tokens=2, stream=False))
    assert "X-Model-Load-Ms" not in reply.headers
    ring.generate(PROMPT, max_tokens=2, model="second")
    assert ring.loaded() == {"first", "second"}
    ring.generate(PROMPT, max_tokens=2, model="first")
    ring.generate(PROMPT, max_tokens=2, model="third")
    assert ring.loaded() == {"first", "third"}
    assert ring.metric('sluice_model_unloads_total{reason="memory"}') == 1
    assert ring.metric("sluice_model_load_seconds_count") == 3
    assert ring.metric('sluice_model_state{model="first",state="loaded"}') == 1
    assert ring.metric('vllm:request_success_total{model="first"') == 3
    assert ring.metric("sluice_models_memory_bytes") <= ring.metric("sluice_models_memory_limit_bytes")


def test_models_have_answers_flags_and_adapters_of_their_own(ring: ModelRing, expected: dict[str, Generated]):
    assert len({answer.text for answer in expected.values()}) == 4
    cards = {card["id"]: card for card in ring.get("/v1/models")["data"]}
    assert {name: card["parent"] for name, card in cards.items()} == {
        **dict.fromkeys((*NAMES, "huge")),
        "poems": "first",
    }
    assert (cards["first"]["max_model_len"], cards["second"]["max_model_len"]) == (2048, 1999)
    assert ring.get("/v1/models/poems")["parent"] == "first"
    assert "--max-model-len=1999" in " ".join(cards["second"]["status"]["args"])
    check(ring, expected, "poems", "second", "third", "first", "poems")


def test_lists_of_ollama_load_nothing(ring: ModelRing):
    ring.post("/models/unload", model="second")
    before = wait_for(lambda: loaded if "second" not in (loaded := ring.loaded()) else None)
    assert [model["name"] for model in ring.get("/api/tags")["models"]] == [*NAMES, "huge"]
    running = {model["name"]: model for model in ring.get("/api/ps")["models"]}
    assert running.keys() == before
    listed = ring.listed()
    for name, model in running.items():
        assert model["size"] == listed[name]["weight_bytes"] + listed[name]["cache_bytes"]
        assert model["expires_at"] == listed[name]["expires_at"]
    shown = ring.post("/api/show", model="second:latest").json()
    assert (shown["modelfile"], shown["model_info"]["llama.context_length"]) == ("FROM second:latest", 1999)
    assert ring.post("/api/show", model="other").status_code == 404
    assert ring.post("/api/pull", model="first").status_code == 501
    assert ring.get("/api/version")["version"]
    assert ring.loaded() == before


def test_a_model_that_cannot_fit_is_refused_with_the_numbers(ring: ModelRing):
    reply = ring.post("/generate", **body(PROMPT, model="huge"))
    assert reply.status_code == 400
    assert "its KV cache 0.05722 GiB" in reply.text
    assert "may take 0.005 GiB (--models-memory-gb)" in reply.text
    assert ring.states()["huge"] == "unloaded"


def test_commands_load_and_unload_and_may_come_twice(ring: ModelRing, expected: dict[str, Generated]):
    for _ in range(2):
        assert ring.post("/models/load", model="second").json() == {"success": True}
    wait_for(lambda: "second" in ring.loaded())
    for _ in range(2):
        assert ring.post("/models/unload", model="second").json() == {"success": True}
    wait_for(lambda: "second" not in ring.loaded())
    assert ring.post("/models/load", model="other").status_code == 404
    check(ring, expected, "second")


def test_keep_alive_of_a_request_unloads_after_it(ring: ModelRing, expected: dict[str, Generated]):
    check(ring, expected, "second")
    ring.post("/generate", **body(PROMPT, model="second", max_tokens=2, stream=False, keep_alive=0))
    wait_for(lambda: "second" not in ring.loaded())
    ring.post("/generate", **body(PROMPT, model="second", max_tokens=2, stream=False, keep_alive=-1))
    assert "expires_at" not in ring.listed()["second"]


def test_an_unload_waits_for_streams_and_later_requests_for_the_unload(ring: ModelRing, expected: dict[str, Generated]):
    check(ring, expected, "first")
    pid = ring.health()["models"]["first"]["pid"]
    scheduler = ring.of("first").status("scheduler")["pid"]
    stream = Stream(ring, "first")
    os.kill(scheduler, signal.SIGSTOP)
    try:
        assert ring.post("/models/unload", model="first").status_code == 200
        later = threading.Thread(target=check, args=(ring, expected, "first"))
        later.start()
        wait_for(lambda: ring.metric("sluice_models_waiting_requests"))
        assert ring.health()["models"]["first"]["pid"] == pid
    finally:
        os.kill(scheduler, signal.SIGCONT)
    assert stream.read() >= LONG
    later.join(TIMEOUT_S)
    assert not later.is_alive()
    assert ring.health()["models"]["first"]["pid"] != pid


def test_a_death_in_one_model_touches_no_other(ring: ModelRing, expected: dict[str, Generated]):
    check(ring, expected, "first", "second")
    stream = Stream(ring, "first")
    second = ring.of("second")
    restarts = second.kill("scheduler")
    check(ring, expected, "second")
    second.wait_for_restart("scheduler", restarts)
    launcher = ring.health()["models"]["second"]["pid"]
    processes = [status["pid"] for status in second.health()["processes"].values()]
    os.kill(launcher, signal.SIGKILL)
    check(ring, expected, "second")
    wait_for(lambda: not any(map(is_running, (launcher, *processes))))
    assert stream.read() >= LONG


def test_models_survive_the_death_of_the_host_and_of_the_router(ring: ModelRing, expected: dict[str, Generated]):
    check(ring, expected, "first", "second")
    pids = {name: model["pid"] for name, model in ring.health()["models"].items() if "pid" in model}
    for process in ("models", "frontend"):
        ring.wait_for_restart(process, ring.kill(process))
        check(ring, expected, "first", "second")
        check_memory(ring, "first", "second")
    assert {name: model["pid"] for name, model in ring.health()["models"].items() if "pid" in model} == pids
    check(ring, expected, "third")


def test_a_models_server_has_no_port_and_its_socket_is_in_a_private_directory(
    ring: ModelRing, expected: dict[str, Generated]
):
    check(ring, expected, "first")
    model = ring.of("first")
    pids = [ring.health()["models"]["first"]["pid"], *(each["pid"] for each in model.health()["processes"].values())]
    open_ports = [each for pid in pids for each in psutil.Process(pid).net_connections("inet") if each.laddr]
    assert open_ports == []
    assert stat.S_ISSOCK(model.run_dir.http_socket.stat().st_mode)
    assert stat.S_IMODE(model.run_dir.path.stat().st_mode) == 0o700
    assert "scheduler" in json.loads(launch(ring, "top", "--model", "first", "--json"))["processes"]


def test_the_memory_of_the_whole_server_includes_that_of_its_models(ring: ModelRing, expected: dict[str, Generated]):
    check(ring, expected, "first", "second")
    check_memory(ring, "first", "second")


def test_a_process_of_one_model_is_restarted_by_command(ring: ModelRing, expected: dict[str, Generated]):
    check(ring, expected, "first")
    first = ring.of("first")
    num_restarts = first.status("scheduler")["num_restarts"] + 1
    launch(ring, "restart", "scheduler", "--model", "first")
    first.wait_for_restart("scheduler", num_restarts)  # the command may be done before a frontend has the new table
    assert first.status("scheduler")["num_restarts"] == num_restarts
    check(ring, expected, "first")


def test_the_pages_show_the_states_and_each_model_on_its_own(ring: ModelRing):
    with BrowserPage(require_browser()) as page:
        ring.post("/models/unload", model="second")
        wait_for(lambda: ring.states()["second"] == "unloaded")
        page.open(f"{ring.url}/pipeline?model=second")
        page.wait_for("document.getElementById('unloaded-title')?.textContent === 'second is not loaded'")
        page.run("document.getElementById('load').click()")
        page.wait_for("document.getElementById('status').textContent === 'ready' && document.querySelector('.steps')")
        assert "second" in ring.loaded()
        page.open(ring.url)
        page.wait_for("document.querySelectorAll('#model-list li').length === 5")
        page.run("document.querySelector('#model-list [value=poems]').click()")
        page.run("document.getElementById('text').value = 'hello'; document.getElementById('composer').requestSubmit()")
        page.wait_for("document.querySelector('.message-actions .dim')")
        page.run("document.querySelector('#messages [aria-label=\"How it was made\"]').click()")
        page.wait_for("document.querySelector('#timeline table')")
        assert page.run("document.querySelector('#messages .assistant .who').textContent") == "poems"
        assert page.problems == []
