"""The live page of a server with a key: before the key, and when the server is gone."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.server_process import ServerProcess
from tests.fork_host import ForkHost
from tests.ring.browser import require_browser
from tests.ring.client import ADMIN_KEY, OPERATOR, TIMEOUT_S
from tests.ring.conftest import CHEAP, READY_TIMEOUT_S
from tests.ring.devtools import BrowserPage

pytestmark = [pytest.mark.ring, pytest.mark.timeout(600)]

STATUS = "document.getElementById('status')?.textContent"
COLOURS = "[...document.querySelectorAll('.node .stripe')].map(stripe => getComputedStyle(stripe).fill)"
GATE = "[...['gate', 'main', 'key-form']].map(id => document.getElementById(id).hidden)"


@pytest.fixture
def server(tiny_checkpoint: Path, fork_host: ForkHost) -> Iterator[ServerProcess]:
    keys = ("--api-key", "sk-client", "--admin-key", ADMIN_KEY)
    flags = ("--model", str(tiny_checkpoint), "--dtype", "float32", "--cpu-threads", "1", "--no-standby")
    server = ServerProcess([*flags, *keys, *CHEAP], open_process=fork_host.open)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def page() -> Iterator[BrowserPage]:
    with BrowserPage(require_browser()) as page:
        yield page


def give_key(page: BrowserPage, key: str) -> None:
    page.run(f"document.getElementById('gate-key').value = {key!r}")
    page.run("document.getElementById('gate-form').requestSubmit()")


def test_it_requests_a_key_reports_what_was_before_and_is_grey_when_the_server_is_gone(
    page: BrowserPage, server: ServerProcess
):
    target = server.wait_until_ready(READY_TIMEOUT_S)
    url = f"http://{target.host}:{target.port}"
    request = {"prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": True, "stream": False}
    assert httpx.post(f"{url}/generate", json=request, headers=OPERATOR, timeout=TIMEOUT_S).status_code == 200
    page.open(url)
    page.wait_for("document.getElementById('gate')?.hidden === false")
    give_key(page, "wrong")
    page.wait_for("document.getElementById('gate-note').textContent === 'The server does not know this key.'")
    give_key(page, "sk-client")
    page.wait_for("document.getElementById('model-name').textContent && document.getElementById('gate').hidden")
    page.run("sessionStorage.clear()")
    page.open(f"{url}/pipeline")

    page.wait_for(f"{STATUS} === 'a key is needed'")
    assert page.run(GATE) == [False, True, True], "a form in place of an empty board"
    give_key(page, "wrong")
    page.wait_for("document.getElementById('gate-note').textContent === 'The server does not know this key.'")
    give_key(page, ADMIN_KEY)
    page.wait_for(f"{STATUS} === 'ready'")
    assert page.run(GATE) == [True, False, False]

    page.wait_for("/^None since .*; [1-9][0-9]* before/.test(document.getElementById('steps-text').textContent)")
    assert page.run("document.getElementById('placement').textContent") == "cpu, float32"
    row = "[...document.querySelector('#requests tbody tr.ended').cells].map(cell => cell.textContent)"
    page.wait_for("document.querySelector('#requests tbody tr.ended')")
    cells = page.run(row)
    assert (cells[1], cells[2].split()[0]) == ("ended: length", "took")
    check_that_restart_asks(page)
    page.wait_for(f"new Set({COLOURS}).size === 1")  # a process may be busy just now
    green = page.run(COLOURS)
    server.stop()
    page.wait_for(f"{STATUS} === 'no connection'")
    grey = page.run(COLOURS)
    assert grey != green
    assert {*grey} == {page.run("getComputedStyle(document.querySelector('#processes .state')).color")}
    assert page.run("[...document.querySelectorAll('.node')].map(node => node.dataset.state)") == ["unknown"] * 4
    lost = "/^the server cannot be reached; showing the state of /"
    page.wait_for(f"{lost}.test(document.getElementById('totals').textContent)")


def check_that_restart_asks(page: BrowserPage) -> None:
    """A single click restarts nothing."""
    page.wait_for("document.querySelector('#processes button')?.hidden === false")
    page.run("window.asked = []; window.confirm = text => { asked.push(text); return false; }")
    page.run("document.querySelector('#processes button').click()")
    assert page.run("asked[0]").startswith("Restart the frontend? ")
    assert page.run("document.getElementById('action-note').textContent") == ""
