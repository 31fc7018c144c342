"""The router against models' servers that the test plays."""

from collections.abc import Iterator

import pytest

from extras.models.messages import StartModel, StopModel
from tests.extras.models.router_run import CHUNKED, OK, RouterRun, chunk
from tests.frontend.frontend_run import wait_until


@pytest.fixture(scope="module")
def _run() -> Iterator[RouterRun]:
    with RouterRun() as run:
        yield run


@pytest.fixture
def run(_run: RouterRun) -> Iterator[RouterRun]:
    """A router without requests and loaded models."""
    yield _run
    for name in tuple(_run.servers):
        _run.client.post("/models/unload", json={"model": name})
    wait_until(lambda: not _run.servers)
    wait_until(
        lambda: all(model["state"] == "unloaded" for model in _run.client.get("/health").json()["models"].values())
    )
    assert _run.gauge("requests") == _run.gauge("on_hold") == 0
    while not _run.asked.empty():
        _run.asked.get()
    assert "Traceback" not in _run.launcher.log_text("frontend")


def test_a_request_loads_its_model_and_is_forwarded_unchanged(run: RouterRun):
    body = b'{"model": "a",  "prompt": "x", "unknown": [1, 2]}'
    headers = {"X-Request-Id": "mine", "Origin": "http://localhost", "X-Other": "1"}
    headers["Host"] = "localhost"
    with run.ask(body, "/v1/completions?x=%20y", headers=headers) as asked:
        assert run.next_order(StartModel) == "a"
        wait_until(lambda: "a" in run.servers)
        arrived = run.servers["a"].take()
        assert (arrived.method, arrived.target, arrived.body) == ("POST", "/v1/completions?x=%20y", body)
        assert arrived.headers["x-request-id"] == "mine"
        assert arrived.headers["x-other"] == "1"
        assert "origin" not in arrived.headers
        assert "x-forwarded-for" not in arrived.headers
        arrived.answer()
        reply = asked.reply()
    assert (reply.status_code, reply.json()) == (200, {})
    assert float(reply.headers["x-model-load-ms"]) > 0
    assert len(reply.headers.get_list("date")) == 1
