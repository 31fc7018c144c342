"""DNS rebinding: a page whose name resolves to this machine has the same origin; its Host gives it away."""

import pytest

from frontend.http.access import AllowedHosts
from messages.config.server import HttpConfig
from messages.errors import BootError, RequestError
from tests.frontend.frontend_run import FrontendRun, make_config

REBOUND = "rebound.example:8000"
PATHS = ("/health", "/ping", "/version", "/v1/models", "/metrics", "/server_info", "/openapi.json", "/load", "/nothing")


def is_allowed(rule: AllowedHosts, *hosts: str) -> bool:
    try:
        rule.check([(b"host", host.encode("latin-1")) for host in hosts])
    except RequestError:
        return False
    return True


@pytest.mark.parametrize("path", PATHS)
def test_a_rebound_page_reads_nothing(server: FrontendRun, path: str):
    for method in ("GET", "HEAD", "POST", "PUT"):
        refused = server.client.request(method, path, headers={"Host": REBOUND})
        assert refused.status_code == 403
        if method != "HEAD":
            assert set(refused.json()) == {"error"}
            assert "--allowed-hosts" in refused.json()["error"]["message"]
            assert refused.json()["error"]["code"] == "host_not_allowed"


def test_a_rebound_page_is_of_the_origin_of_its_host_and_orders_nothing(server: FrontendRun):
    headers = {"Host": REBOUND, "Origin": f"http://{REBOUND}"}
    for path in ("/abort_request", "/generate", "/flush_cache", "/start_profile"):
        assert server.client.post(path, json={"all": True}, headers=headers).status_code == 403


def test_a_rebound_page_learns_nothing_while_the_server_starts():
    with FrontendRun(is_ready=False) as run:
        for path in ("/health", "/v1/models"):
            assert run.client.get(path, headers={"Host": REBOUND}).status_code == 403
            assert run.client.get(path).status_code == 503


@pytest.mark.parametrize("bound", ["127.0.0.1", "127.0.0.2", "::1"])
def test_on_loopback_the_names_of_loopback_and_addresses_are_allowed(bound: str):
    rule = AllowedHosts((), bound)
    for host in ("localhost", "localhost:8000", "LocalHost:1", "localhost.", "my.app.localhost:8000", "127.0.0.1:8000"):
        assert is_allowed(rule, host)
    for host in ("[::1]", "[::1]:8000", "127.1.2.3", "10.0.0.5:8000", "[fe80::1]:8000"):
        assert is_allowed(rule, host), "no name, so nothing that could be rebound"
    for host in ("rebound.example", "localhost.example", "notlocalhost", "127.0.0.1.nip.io", "2130706433", "0x7f.1"):
        assert not is_allowed(rule, host)
    for host in ("", ":8000", "[::1", "::1", "localhost:x", "user@localhost", "localhost/", "é", "a b", "[localhost]"):
        assert not is_allowed(rule, host)
    assert not is_allowed(rule, "localhost", "rebound.example"), "each Host counts"
    rule.check([])  # a browser always sends one


@pytest.mark.parametrize("bound", ["0.0.0.0", "::", "192.0.2.7"])
def test_elsewhere_every_host_is_allowed(bound: str):
    assert is_allowed(AllowedHosts((), bound), "llm.example")
    assert is_allowed(AllowedHosts((), bound), "")


def test_the_flag_adds_on_loopback_and_limits_elsewhere():
    for bound in ("127.0.0.1", "0.0.0.0"):
        rule = AllowedHosts(("llm.example", "*.Example.org"), bound)
        for host in ("llm.example:8000", "LLM.example.", "a.example.org", "a.b.example.org", "localhost", "10.0.0.5"):
            assert is_allowed(rule, host)
        for host in ("other.example", "a.llm.example", "example.org", "notexample.org"):
            assert not is_allowed(rule, host)
        assert is_allowed(AllowedHosts(("*",), bound), "rebound.example")


@pytest.mark.parametrize("host", ["http://llm.example", "llm.example:8000", "llm.example/", "", "a b", "*.", "a.*"])
def test_what_is_no_host_name_is_refused_at_the_start(host: str):
    with pytest.raises(BootError, match="--allowed-hosts"):
        AllowedHosts((host,), "127.0.0.1")


def test_the_flag_reaches_the_server():
    with FrontendRun(make_config(HttpConfig(port=0, allowed_hosts=("llm.example",)))) as run:
        assert run.client.get("/health", headers={"Host": "llm.example"}).status_code == 200
        assert run.client.get("/health", headers={"Host": "other.example"}).status_code == 403
    with FrontendRun(make_config(HttpConfig(port=0, host="0.0.0.0"))) as run:
        assert run.client.get("/health", headers={"Host": REBOUND}).status_code == 200
