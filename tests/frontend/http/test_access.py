"""Who counts as the operator, and which key each endpoint declares."""

import pytest

from frontend.http.access import AccessRules, check_is_local
from frontend.http.keys import Keys
from messages.config.server import HttpConfig
from messages.errors import RequestError
from tests.frontend.frontend_run import FrontendRun, make_config

KEY, ADMIN_KEY = "sk-client", "sk-operator"
PUBLIC = {"/health", "/ping", "/version", "/api/version"}
OPERATORS = {"/admin/processes", "/admin/restart/{process}", "/admin/snapshot", "/start_profile", "/stop_profile"}
OPERATORS |= {"/cache/explain", "/cache/tree", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"])
def test_a_program_on_this_machine_is_local(host: str):
    check_is_local((host, 5), "http", [(b"host", b"localhost"), (b"user-agent", b"curl")])


@pytest.mark.parametrize("client", [("10.0.0.1", 5), ("::ffff:10.0.0.1", 5), ("fe80::1%lo", 5), ("", 5), None])
def test_another_machine_is_not(client: tuple[str, int] | None):
    with pytest.raises(RequestError) as error:
        check_is_local(client, "http", [])
    assert error.value.info.status == 403


@pytest.mark.parametrize(
    "header",
    [b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-anything", b"x-real-ip", b"via", b"origin"],
)
def test_who_asks_through_a_proxy_or_for_a_web_page_is_not(header: bytes):
    with pytest.raises(RequestError):
        check_is_local(("127.0.0.1", 5), "http", [(header, b"")])


@pytest.mark.parametrize("host", [b"localhost:8000", b"127.0.0.1:8000"])
def test_the_servers_own_page_is_and_no_other(host: bytes):
    own = [(b"host", host), (b"origin", b"http://" + host)]
    check_is_local(("127.0.0.1", 5), "http", own)
    foreign = [(b"host", host), (b"origin", b"https://page.example")]
    for scheme, headers in (("http", foreign), ("http", [*own, *foreign]), ("https", own)):
        with pytest.raises(RequestError):
            check_is_local(("127.0.0.1", 5), scheme, headers)


def test_an_operator_elsewhere_is_refused_before_the_key_is_looked_at():
    rules = AccessRules(HttpConfig(), Keys((), (ADMIN_KEY,)), "0.0.0.0")
    for key in (ADMIN_KEY, "wrong"):
        headers = [(b"authorization", f"Bearer {key}".encode())]
        scope = {"headers": headers, "method": "POST", "scheme": "http", "client": ("10.0.0.1", 5)}
        with pytest.raises(RequestError) as error:
            rules.check("operator", scope)
        assert error.value.info.code == "not_local"


def test_each_endpoint_reports_what_it_needs_and_that_holds():
    """The keys in `/openapi.json` are those that the server requires, with any prefix of a proxy."""
    http = HttpConfig(port=0, api_key=(KEY,), admin_key=(ADMIN_KEY,), root_path="/llm")
    with FrontendRun(make_config(http), headers={"Authorization": f"Bearer {KEY}"}) as run:
        described = run.client.get("/openapi.json").json()["paths"]
        needs = {
            path: operation.get("security", [{"none": []}])[0]
            for path, operations in described.items()
            for operation in operations.values()
        }
        assert {path for path, schemes in needs.items() if "none" in schemes} == PUBLIC
        assert {path for path, schemes in needs.items() if "admin_key" in schemes} == OPERATORS
        for path, schemes in needs.items():
            for prefix in ("", "/llm"):
                url = prefix + path.replace("{process}", "scheduler").replace("{id}", "m")
                stranger = run.client.head(url, headers={"Authorization": ""}).status_code
                client = run.client.head(url, params={"timeout_s": 0.1}).status_code  # what a probe waits for
                assert (stranger == 401) == ("none" not in schemes)
                assert (client == 401) == ("admin_key" in schemes)
