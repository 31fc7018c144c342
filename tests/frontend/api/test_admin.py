"""Orders over HTTP: what the launcher is asked, and what its answers become."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from frontend.api.admin import check_is_local
from messages.errors import RequestError
from messages.orders import (
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
from tests.frontend.frontend_run import Call, FrontendRun

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
    with FrontendRun() as run:
        yield run


def answer(run: FrontendRun, *results: Result) -> Ask:
    """Plays the launcher: returns what was asked."""
    ask = run.launcher.wait_for("frontend", Ask)
    for result in results:
        run.launcher.send("frontend", Answer(ask.ask_id, result))
    return ask


def restart(run: FrontendRun, process: str, *results: Result, query: str = "") -> tuple[Ask, Call]:
    call = run.call(path=f"/admin/restart/{process}{query}")
    return answer(run, *results), call


def test_the_list_of_processes_is_what_the_launcher_says(run: FrontendRun):
    call = run.call(path="/admin/processes", method="GET")
    assert answer(run, ProcessList((INFO,))).order == ListProcesses()
    assert call.json()["processes"][0]["cpu_percent"] == 1.5
    call.leave()


def test_a_restart_replies_at_its_end(run: FrontendRun):
    ask, call = restart(run, "scheduler", Progress("half"), Done("replaced"), query="?timeout_s=2.5")
    assert ask.order == RestartProcess("scheduler", 2.5)
    assert (call.response.status, call.json()) == (200, {"done": "replaced"})
    call.leave()


def test_a_restart_of_the_frontend_replies_when_the_new_one_accepts(run: FrontendRun):
    ask, call = restart(run, "frontend", Progress("the new one accepts"))
    assert ask.order == RestartProcess("frontend", None)
    assert (call.response.status, call.json()) == (200, {"begun": "the new one accepts"})
    call.leave()


@pytest.mark.parametrize(("reason", "status"), [("unknown", 404), ("busy", 409), ("impossible", 400), ("failed", 500)])
def test_what_fails_is_an_error(run: FrontendRun, reason: Reason, status: int):
    _, call = restart(run, "tokenizer", Failed(reason, "why not"))
    assert call.response.status == status
    assert call.json()["error"] == {"message": "why not", "type": "order_error", "param": None, "code": reason}
    call.leave()


def test_a_wrong_time_is_refused_without_the_launcher(run: FrontendRun):
    for text in ("soon", "-1", "nan", "inf"):
        assert httpx.post(f"{run.url}/admin/restart/tokenizer", params={"timeout_s": text}).status_code == 400


@pytest.mark.parametrize(
    ("host", "headers", "is_local"),
    [
        ("127.0.0.1", {}, True),
        ("127.1.2.3", {}, True),
        ("::1", {}, True),
        ("::ffff:127.0.0.1", {}, True),
        ("10.0.0.1", {}, False),
        ("::ffff:10.0.0.1", {}, False),
        ("", {}, False),
        ("127.0.0.1", {"origin": "https://example.org"}, False),
    ],
)
def test_only_programs_on_this_machine_give_orders(host: str, headers: dict[str, str], is_local: bool):
    request: Any = SimpleNamespace(client=SimpleNamespace(host=host), headers=headers)
    if is_local:
        check_is_local(request)
    else:
        with pytest.raises(RequestError) as error:
            check_is_local(request)
        assert error.value.info.status == 403
