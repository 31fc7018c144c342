"""Web pages, proxies and TLS between clients and the endpoints."""

import socket
import ssl
from pathlib import Path

import httpx
import pytest

from messages.config.server import HttpConfig
from messages.control.processes import BootFailed
from tests.fake_launcher import FakeLauncher
from tests.frontend.frontend_run import TIMEOUT_S, FrontendRun, final, make_config

PAGE = "https://page.example"
KEY = "sk-1"


def test_web_pages_of_an_allowed_origin_may_ask():
    http = HttpConfig(port=0, cors_allow_origins=(PAGE,), api_key=(KEY,))
    with FrontendRun(make_config(http), headers={"Authorization": f"Bearer {KEY}"}) as run:
        preflight = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
        preflight["Access-Control-Request-Headers"] = "content-type, authorization"
        with httpx.Client(base_url=run.url, timeout=TIMEOUT_S) as browser:
            allowed = browser.options("/generate", headers=preflight)
            assert allowed.status_code == 200
            assert allowed.headers["access-control-allow-origin"] == PAGE
            assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
            delete = {**preflight, "Access-Control-Request-Method": "DELETE"}
            assert browser.options("/v1/responses/resp_1", headers=delete).status_code == 200
            assert browser.options("/generate", headers={**preflight, "Origin": "https://other"}).status_code == 400
            refused = browser.get("/v1/models", headers={"Origin": PAGE})
            assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)
        shown = run.client.get("/v1/models", headers={"Origin": PAGE})
        assert "x-request-id" in shown.headers["access-control-expose-headers"].lower()
        other = run.client.get("/v1/models", headers={"Origin": "https://other"})
        assert "access-control-allow-origin" not in other.headers


def test_without_the_flag_no_page_is_allowed(server: FrontendRun):
    assert "access-control-allow-origin" not in server.client.get("/v1/models", headers={"Origin": PAGE}).headers
    assert server.client.options("/generate", headers={"Origin": PAGE}).status_code == 405


def test_paths_are_taken_with_and_without_the_path_of_a_proxy():
    with FrontendRun(make_config(HttpConfig(port=0, root_path="/llm/"))) as run:
        assert run.client.get("/llm/v1/models").json() == run.client.get("/v1/models").json()
        assert run.client.get("/llm").status_code == 404
        assert run.client.get("/llmx/ping").status_code == 404
        assert run.client.get("/llm/openapi.json").json()["servers"] == [{"url": "/llm"}]
        with run.call({"stream": False}, path="/llm/generate") as call:
            run.send(final(run.take_request()))
            assert call.response.status == 200


def test_https_with_a_certificate(certificate: tuple[Path, Path]):
    cert, key = certificate
    http = HttpConfig(port=0, ssl_certfile=str(cert), ssl_keyfile=str(key))
    with FrontendRun(make_config(http), tls=ssl.create_default_context(cafile=str(cert))) as run:
        assert run.url.startswith("https://127.0.0.1:")
        asked = run.ask("/generate", {"prompt": "a", "stream": False})
        run.send(final(run.take_request(), "ok", (1,)))
        assert asked.response().json()["text"] == "ok"
        context = ssl.create_default_context(cafile=str(cert))
        with (
            socket.create_connection(run.address, timeout=TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
        ):
            client.sendall(b"no HTTP at all\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 400 ")
        with pytest.raises(httpx.HTTPError):
            httpx.get(run.url.replace("https", "http"), timeout=TIMEOUT_S)


def test_clients_need_a_certificate_where_an_authority_is_named(certificate: tuple[Path, Path]):
    cert, key = certificate
    http = HttpConfig(port=0, ssl_certfile=str(cert), ssl_keyfile=str(key), ssl_ca_certs=str(cert))
    context = ssl.create_default_context(cafile=str(cert))
    context.load_cert_chain(cert, key)
    with FrontendRun(make_config(http), tls=context) as run:
        assert run.client.get("/ping").status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{run.url}/ping", verify=ssl.create_default_context(cafile=str(cert)), timeout=TIMEOUT_S)


@pytest.mark.parametrize("kind", ["missing", "no key", "no certificate", "not PEM"])
def test_files_that_make_no_https_are_refused(certificate: tuple[Path, Path], tmp_path: Path, kind: str):
    cert, key = map(str, certificate)
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    fields = {
        "missing": {"ssl_certfile": str(tmp_path / "none.pem"), "ssl_keyfile": key},
        "no key": {"ssl_certfile": cert},
        "no certificate": {"ssl_keyfile": key},
        "not PEM": {"ssl_certfile": str(junk), "ssl_keyfile": key},
    }[kind]
    with FakeLauncher(make_config(HttpConfig(port=0, **fields))) as launcher:
        launcher.start("frontend")
        assert "--ssl-" in launcher.wait_for("frontend", BootFailed).message
        assert launcher.wait_exit("frontend") == 1
