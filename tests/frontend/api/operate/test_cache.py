"""`POST /flush_cache` and `GET /load`."""

import msgspec

from messages.control.processes import ProcessTable
from messages.ring.replies import CacheFlushed
from messages.ring.requests import FlushCache
from tests.frontend.frontend_run import Asked, FrontendRun, table


def test_a_flush_reports_how_many_pages_are_free_again(server: FrontendRun):
    asked = Asked(lambda: server.client.post("/flush_cache"))
    command = server.take(FlushCache)
    assert not command.is_forced
    server.send(CacheFlushed(command.uid, 12))
    assert asked.response().json() == {"num_pages": 12}


def test_a_flush_is_refused_while_requests_run_unless_it_is_forced(server: FrontendRun):
    asked = server.ask("/flush_cache", {})
    server.send(CacheFlushed(server.take(FlushCache).uid, 0, num_requests=3))
    refused = asked.response()
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "requests_running")
    assert "3 requests" in refused.json()["error"]["message"]
    asked = server.ask("/flush_cache", {"force": True})
    command = server.take(FlushCache)
    assert command.is_forced
    server.send(CacheFlushed(command.uid, 4))
    assert asked.response().json() == {"num_pages": 4}


def test_a_bad_flush_is_refused(server: FrontendRun):
    assert server.client.post("/flush_cache", json={"force": 1}).json()["error"]["param"] == "force"
    assert server.client.get("/flush_cache").status_code == 405


def test_the_load_is_known_without_asking_anyone():
    with FrontendRun() as run:
        gauges = {"running": 2.0, "waiting": 3.0, "pages_in_use": 5.0, "pages_all": 20.0}
        statuses = [
            msgspec.structs.replace(status, gauges=gauges) if status.name == "scheduler" else status
            for status in table(scheduler="busy").processes
        ]
        run.show(ProcessTable(tuple(statuses)))
        assert run.client.get("/load").json() == {
            "server_load": 0,
            "requests_running": 2,
            "requests_waiting": 3,
            "kv_cache_usage": 0.25,
            "frontends_missing": 0,
        }
