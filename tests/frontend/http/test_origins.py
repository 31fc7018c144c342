"""Web pages of other origins: requests that browsers send without a preflight, and which of them are refused."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from frontend.http.access import AllowedOrigins
from messages.config.server import HttpConfig
from messages.errors import BootError, RequestError
from tests.frontend.frontend_run import FrontendRun, final, make_config

PAGE = "https://page.example"
BODIES = {"/abort_request": b'{"all": true}', "/generate": b'{"prompt": "a"}', "/flush_cache": b"", "/nothing": b""}
JSON_HEADERS = {"Content-Type": "application/json"}

Pairs = list[tuple[bytes, bytes]]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("origin", [PAGE, "null", "http://127.0.0.1:1", "https://127.0.0.1", ""])
def test_an_order_of_a_foreign_page_is_refused(server: FrontendRun, path: str, origin: str):
    for headers in ({}, JSON_HEADERS):
        refused = server.client.post(path, content=BODIES[path], headers={"Origin": origin, **headers})
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "origin_not_allowed"
        assert "--cors-allow-origins" in refused.json()["error"]["message"]
        assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize("path", ["/abort_request", "/generate", "/tokenize", "/flush_cache"])
def test_a_body_without_a_media_type_is_refused(server: FrontendRun, path: str):
    """As sent by a page's `fetch` of an untyped Blob, and by a browser without an Origin."""
    for body in (b'{"all": true}', iter([b'{"all": ', b"true}"])):
        refused = server.client.post(path, content=body)
        assert refused.status_code == 415
        assert "application/json" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "text/plain;application/json", "application/x-www-form-urlencoded"]
)
def test_a_body_of_another_media_type_is_refused(server: FrontendRun, content_type: str):
    refused = server.client.post("/abort_request", content=b'{"all": true}', headers={"Content-Type": content_type})
    assert refused.status_code == 415


def test_a_page_of_the_server_itself_and_programs_may_order(server: FrontendRun):
    own = server.url
    for headers in ({"Origin": own}, {"Origin": own.upper().replace("HTTP", "http")}, {}):
        assert server.client.post("/abort_request", json={"all": True}, headers=headers).status_code == 200


def test_reading_needs_no_origin_of_ours(server: FrontendRun):
    """The browser keeps the reply from the page, and a read changes nothing."""
    for path in ("/health", "/metrics", "/v1/models"):
        reply = server.client.get(path, headers={"Origin": PAGE})
        assert reply.status_code == 200
        assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize("allowed", [PAGE, f"{PAGE}/", PAGE.upper(), "*"])
def test_a_page_of_an_allowed_origin_may_order(allowed: str):
    http = HttpConfig(port=0, cors_allow_origins=(allowed,))
    with FrontendRun(make_config(http)) as run:
        reply = run.client.post("/abort_request", json={"all": True}, headers={"Origin": PAGE})
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (
            200,
            "*" if allowed == "*" else PAGE,
        )
        other = run.client.post("/abort_request", json={"all": True}, headers={"Origin": "null"})
        assert other.status_code == (200 if allowed == "*" else 403)


def test_a_page_behind_tls_has_another_origin_than_one_without(certificate: tuple[Path, Path]):
    cert, key = certificate
    http = HttpConfig(port=0, ssl_certfile=str(cert), ssl_keyfile=str(key))
    with FrontendRun(make_config(http), tls=ssl.create_default_context(cafile=str(cert))) as run:
        assert run.client.post("/abort_request", json={"all": True}, headers={"Origin": run.url}).status_code == 200
        plain = run.url.replace("https:", "http:")
        assert run.client.post("/abort_request", json={"all": True}, headers={"Origin": plain}).status_code == 403


def heads(host: str | None, *origins: str) -> Pairs:
    found = [(b"origin", origin.encode("latin-1")) for origin in origins]
    return found if host is None else [(b"host", host.encode()), *found]


@pytest.mark.parametrize(
    ("scheme", "host", "origin", "is_allowed"),
    [
        ("http", "localhost:8000", "http://localhost:8000", True),
        ("http", "LOCALHOST:8000", "http://localhost:8000", True),
        ("http", "[::1]:8000", "http://[::1]:8000", True),
        ("http", "llm.example", "http://llm.example", True),
        ("http", "llm.example:80", "http://llm.example", True),
        ("https", "llm.example:443", "https://llm.example", True),
        ("http", "llm.example:443", "http://llm.example", False),
        ("http", "localhost:8000", "http://localhost", False),
        ("http", "localhost:8000", "http://127.0.0.1:8000", False),
        ("http", "localhost:8000", "https://localhost:8000", False),
        ("http", "localhost:8000", "http://localhost:8000.evil.example", False),
        ("http", "localhost:8000", "null", False),
        ("http", "llm.example", "https://llm.example", False),  # TLS ends in a proxy: the operator lists the origin
        ("http", None, "http://", False),
        ("http", "é", "http://é", False),
    ],
)
def test_the_own_origin_is_scheme_host_and_port(scheme: str, host: str | None, origin: str, is_allowed: bool):
    rule = AllowedOrigins(())
    if is_allowed:
        rule.check("POST", scheme, heads(host, origin))
    else:
        with pytest.raises(RequestError):
            rule.check("POST", scheme, heads(host, origin))


def test_two_origins_are_two_to_allow():
    rule = AllowedOrigins((PAGE,))
    rule.check("POST", "http", heads("localhost", PAGE, "http://localhost"))
    for origins in ((PAGE, "null"), ("null", PAGE)):
        with pytest.raises(RequestError):
            rule.check("POST", "http", heads("localhost", *origins))


def test_methods_that_only_read_are_not_asked():
    for method in ("GET", "HEAD", "OPTIONS"):
        AllowedOrigins(()).check(method, "http", heads("localhost", PAGE))
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        with pytest.raises(RequestError):
            AllowedOrigins(()).check(method, "http", heads("localhost", PAGE))


@pytest.mark.parametrize("origin", ["page.example", "https://page.example/path", "https://", "//page.example", ""])
def test_what_is_no_origin_is_refused_at_the_start(origin: str):
    with pytest.raises(BootError, match="--cors-allow-origins"):
        AllowedOrigins((origin,))


@pytest.fixture(scope="module")
def open_to_a_page() -> Iterator[FrontendRun]:
    with FrontendRun(make_config(HttpConfig(port=0, cors_allow_origins=(PAGE,)))) as run:
        yield run


def test_an_allowed_page_generates(open_to_a_page: FrontendRun):
    with open_to_a_page.call({"stream": False}, {"Origin": PAGE}) as call:
        open_to_a_page.send(final(open_to_a_page.take_request(), "ok", (1,)))
        assert call.response.status == 200
        assert call.response.headers["access-control-allow-origin"] == PAGE


def test_a_preflight_of_a_page_that_is_not_allowed_fails(open_to_a_page: FrontendRun):
    preflight = {"Origin": "https://other.example", "Access-Control-Request-Method": "POST"}
    refused = httpx.options(f"{open_to_a_page.url}/generate", headers=preflight, timeout=30)
    assert refused.status_code == 400
    assert "access-control-allow-origin" not in refused.headers
