"""The application at the moment when the last process of the ring becomes ready."""

import asyncio
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from frontend.http import app as app_module
from frontend.http.access import AccessRules
from frontend.http.app import App
from frontend.http.endpoint import Endpoint
from frontend.http.keys import Keys
from frontend.http.responses import JsonReply
from frontend.links.processes import ProcessView
from frontend.metrics.http_requests import HttpRequests
from messages.config.server import HttpConfig
from tests.frontend.frontend_run import table


async def answer(request: Request) -> JsonReply:
    return JsonReply({})


async def ask(app: App) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        return await client.get("/x")


@pytest.mark.parametrize(("comes", "status"), [(True, 200), (False, 503)])
def test_a_request_waits_for_the_table_that_reports_it(monkeypatch: pytest.MonkeyPatch, comes: bool, status: int):
    processes = ProcessView()
    waits: list[float] = []

    async def pass_time(seconds: float) -> None:
        waits.append(seconds)
        if comes:
            processes.update(table())

    monkeypatch.setattr(app_module.asyncio, "sleep", pass_time)
    rules = AccessRules(HttpConfig(), Keys((), ()), "127.0.0.1")
    ended: list[Any] = []
    app = App([Endpoint("/x", answer, "text")], processes, rules, HttpRequests(), on_response=ended.append)
    reply = asyncio.run(ask(app))
    assert (reply.status_code, waits) == (status, [app_module.START_GRACE_S])
    if comes:
        assert asyncio.run(ask(app)).status_code == 200
        assert len(waits) == 1
