"""Web pages in a real browser cannot change or read anything of a server on the same machine."""

import re
import threading
from typing import Any, Self

import httpx
import pytest

from tests.ring.browser import Results, Site, require_browser, visit
from tests.ring.client import OPERATOR, RingClient

pytestmark = [pytest.mark.ring, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def browser() -> str:
    return require_browser()


@pytest.fixture(scope="module")
def ring(browser: str, plain_ring: RingClient) -> RingClient:
    return plain_ring


class Clients:
    """A program that sends one request after another. No other client may end them."""

    def __init__(self, ring: RingClient):
        self.num_replies = 0
        self._ring = ring
        self._reasons: set[str] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join(60.0)
        assert not self._thread.is_alive()
        assert self._reasons == {"length"}

    def _run(self) -> None:
        while not self._is_over.is_set():
            reply = self._ring.generate([5, 6, 7], max_tokens=200, ignore_eos=True)
            self._reasons.add(reply.finish_reason)
            self.num_replies += 1


def attack(url: str) -> str:
    """Returns the script of a page that tries to control the server at `url`, or to read from it."""
    return """
    const url = URL, json = {"Content-Type": "application/json"};
    for (const mode of ["cors", "no-cors"]) {
      const abort = {method: "POST", mode, body: untyped({all: true})};
      await attempt("abort untyped " + mode, url + "/abort_request", abort);
      await attempt("abort text " + mode, url + "/abort_request", {...post({all: true}), mode});
      const generate = {method: "POST", mode, body: untyped({prompt: "a", max_tokens: 1, stream: false})};
      await attempt("generate untyped " + mode, url + "/generate", generate);
      for (const path of ["/flush_cache", "/admin/restart/tokenizer", "/start_profile"])
        await attempt("post " + path + " " + mode, url + path, {method: "POST", mode});
    }
    await attempt("abort json", url + "/abort_request", post({all: true}, json));
    for (const path of ["/health", "/ping", "/version", "/v1/models", "/metrics", "/server_info", "/admin/processes"])
      await attempt("get " + path, url + path);
    navigator.sendBeacon(url + "/abort_request", untyped({all: true}));
    await submit(url + "/flush_cache");
    for (const path of ["/abort_request", "/flush_cache", "/admin/restart/tokenizer", "/start_profile", "/metrics"])
      await load("img", url + path);
    await load("script", url + "/abort_request");
    await load("iframe", url + "/admin/restart/tokenizer");
    """.replace("URL", repr(url), 1)


def check_nothing_was_read(results: Results) -> None:
    assert len(results) == 20
    for name, (kind, status, text) in results.items():
        if kind == "basic":  # the same origin for the browser
            assert status == 403, (name, text)
        else:
            assert kind == ("opaque" if name.endswith(" no-cors") else "failed"), (name, kind, status, text)


def state_of(ring: RingClient) -> dict[str, Any]:
    """Returns the state that a command, a flush or a generated text would change."""
    processes = ring.health()["processes"]
    metrics = httpx.get(f"{ring.url}/metrics", timeout=60.0).text
    ended = re.findall(r"^vllm:request_success_total{.*} (\S+)$", metrics, re.MULTILINE)
    return {
        "incarnations": {name: process["incarnation"] for name, process in processes.items()},
        "num_ended": sum(map(float, ended)),
        "is_profiled": httpx.post(f"{ring.url}/stop_profile", headers=OPERATOR, timeout=60.0).status_code != 409,
    }


def address_of(ring: RingClient) -> tuple[str, int]:
    url = httpx.URL(ring.url)
    assert url.port is not None
    return url.host, url.port


def visit_during_requests(ring: RingClient, browser: str, page: str, target: str, *flags: str) -> Results:
    """Opens `page`, which attacks `target`, and returns its results. Fails if it has changed anything."""
    remembered = list(range(3, 60))
    cached = ring.generate(remembered, max_tokens=4, ignore_eos=True) and ring.generate(remembered, max_tokens=4)
    before = state_of(ring)
    with Site(attack(target), address_of(ring)) as site, Clients(ring) as clients:
        page, *flags = (text.replace("PORT", str(site.port)) for text in (page, *flags))
        results = visit(browser, site, page, *flags)
    ring.wait_until_empty()
    after = state_of(ring)
    assert clients.num_replies > 0
    assert after == {**before, "num_ended": before["num_ended"] + clients.num_replies}
    assert not after["is_profiled"]
    again = ring.generate(remembered, max_tokens=4)
    assert again.usage["cached_tokens"] == cached.usage["cached_tokens"] > 0, "the prefix cache was flushed"
    return results


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_page_of_another_origin_changes_and_reads_nothing(ring: RingClient, browser: str, name: str):
    target = f"http://{name}:{address_of(ring)[1]}"
    check_nothing_was_read(visit_during_requests(ring, browser, "http://localhost:PORT/page", target))


def test_a_sandboxed_page_changes_and_reads_nothing(ring: RingClient, browser: str):
    """Its `Origin` is `null`."""
    check_nothing_was_read(visit_during_requests(ring, browser, "http://localhost:PORT/page/sandboxed", ring.url))


def test_a_page_whose_name_is_rebound_changes_and_reads_nothing(ring: RingClient, browser: str):
    """To the browser, the server then has the page's origin, so the page may read its replies."""
    url = "http://rebound.example"
    rule = "--host-resolver-rules=MAP rebound.example 127.0.0.1:PORT"
    results = visit_during_requests(ring, browser, f"{url}/page", url, rule)
    check_nothing_was_read(results)
    assert all("--allowed-hosts" in text for kind, _, text in results.values() if kind == "basic")
    assert results["get /health"][:2] == ("basic", 403)


USE = """
const url = URL, json = {"Content-Type": "application/json"};
await attempt("generate", url + "/generate", post({prompt: "a", max_tokens: 1, stream: false}, json));
await attempt("untyped", url + "/generate", {method: "POST", body: untyped({prompt: "a", stream: false})});
await attempt("models", url + "/v1/models");
await attempt("restart", url + "/admin/restart/tokenizer", {method: "POST"});
"""


def test_a_page_of_the_servers_own_origin_uses_it(ring: RingClient, browser: str):
    with Site(USE.replace("URL", "''"), address_of(ring)) as site:
        results = visit(browser, site, f"http://localhost:{site.port}/page")
    seen = {name: (kind, status) for name, (kind, status, _) in results.items()}
    assert seen == {
        "generate": ("basic", 200),
        "untyped": ("basic", 415),
        "models": ("basic", 200),
        "restart": ("basic", 401),  # the live page is such a page: it may, with a key
    }


def test_a_page_of_an_allowed_origin_uses_a_server_by_an_allowed_name(ring: RingClient, browser: str):
    port = address_of(ring)[1]
    with Site(USE.replace("URL", "'http://llm.example'"), address_of(ring)) as site:
        rules = f"MAP page.example 127.0.0.1:{site.port}, MAP llm.example 127.0.0.1:{port}"
        results = visit(browser, site, "http://page.example/page", f"--host-resolver-rules={rules}")
    seen = {name: (kind, status) for name, (kind, status, _) in results.items()}
    assert seen == {
        "generate": ("cors", 200),
        "untyped": ("cors", 415),
        "models": ("cors", 200),
        "restart": ("cors", 403),
    }
