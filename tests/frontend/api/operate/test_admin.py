"""Commands over HTTP: the messages to the launcher, and the replies for its answers."""

from typing import Any

import pytest

from messages.config.server import HttpConfig
from messages.control.admin import (
    Answer,
    Ask,
    Done,
    Failed,
    ListProcesses,
    ProcessInfo,
    ProcessList,
    Progress,
    Reason,
    RestartProcess,
    Result,
)
from tests.frontend.frontend_run import Call, FrontendRun, make_config

KEY = "sk-operator"
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}

INFO = ProcessInfo(
    name="tokenizer",
    state="ready",
    pid=7,
    incarnation=1,
    num_restarts=0,
    beat_age_s=0.5,
    busy_s=None,
    cpu_percent=1.5,
    rss_bytes=1000,
    phase="",
    fraction=None,
    gauges={"chars_in_hand": 0.0},
)


@pytest.fixture(scope="module")
def run() -> Any:
    with FrontendRun(make_config(HttpConfig(port=0, admin_key=(KEY,))), headers=AUTHORIZED) as run:
        yield run


def answer(run: FrontendRun, *results: Result) -> Ask:
    """Plays the launcher: returns what was asked."""
    ask = run.launcher.wait_for("frontend", Ask)
    for result in results:
        run.launcher.send("frontend", Answer(ask.ask_id, result))
    return ask


def restart(run: FrontendRun, process: str, *results: Result, query: str = "") -> tuple[Ask, Call]:
    call = run.call(path=f"/admin/restart/{process}{query}", headers=AUTHORIZED)
    return answer(run, *results), call


def test_the_list_of_processes_is_what_the_launcher_reports(run: FrontendRun):
    call = run.call(path="/admin/processes", method="GET", headers=AUTHORIZED)
    assert answer(run, ProcessList((INFO,))).command == ListProcesses()
    assert call.json()["processes"][0]["cpu_percent"] == 1.5
    call.leave()


def test_a_restart_replies_at_its_end(run: FrontendRun):
    ask, call = restart(run, "scheduler", Progress("half"), Done("replaced"), query="?timeout_s=2.5&all=true")
    assert ask.command == RestartProcess("scheduler", 2.5, is_for_all=True)
    assert (call.response.status, call.json()) == (200, {"done": "replaced"})
    call.leave()


def test_a_restart_of_the_frontend_replies_when_the_new_one_accepts(run: FrontendRun):
    ask, call = restart(run, "frontend", Progress("the new one accepts"))
    assert ask.command == RestartProcess("frontend", None)
    assert (call.response.status, call.json()) == (200, {"begun": "the new one accepts"})
    call.leave()


@pytest.mark.parametrize(("reason", "status"), [("unknown", 404), ("busy", 409), ("impossible", 400), ("failed", 500)])
def test_what_fails_is_an_error(run: FrontendRun, reason: Reason, status: int):
    _, call = restart(run, "tokenizer", Failed(reason, "why not"))
    assert call.response.status == status
    assert call.json()["error"] == {"message": "why not", "type": "command_error", "param": None, "code": reason}
    call.leave()


def test_a_wrong_time_is_refused_without_the_launcher(run: FrontendRun):
    for text in ("soon", "-1", "nan", "inf"):
        assert run.client.post("/admin/restart/tokenizer", params={"timeout_s": text}).status_code == 400


ENDPOINTS = [("GET", "/admin/processes"), ("POST", "/admin/restart/scheduler")]
ENDPOINTS += [("POST", "/start_profile"), ("POST", "/stop_profile")]


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_only_who_has_the_key_on_this_machine_gives_commands(run: FrontendRun, method: str, path: str):
    for key in ("", "Bearer wrong"):
        assert run.client.request(method, path, headers={"Authorization": key}).status_code == 401
    for header in ("Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP", "Via", "Origin"):
        refused = run.client.request(method, path, headers={header: "127.0.0.1"})
        code = "origin_not_allowed" if header == "Origin" and method == "POST" else "not_local"
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, code)
    assert not any(isinstance(message, Ask) for message in run.launcher.messages.get("frontend", []))


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_without_a_key_no_one_gives_commands_over_http(server: FrontendRun, method: str, path: str):
    refused = server.client.request(method, path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "no_admin_key")
    assert "launch.py" in refused.json()["error"]["message"]
