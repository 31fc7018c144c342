from pathlib import Path
from typing import Any

import httpx
import pytest

from frontend.http.keys import Keys, UnauthorizedError, read_keys
from messages.config.server import HttpConfig, RunConfig
from messages.control.processes import BootFailed
from messages.errors import BootError, RequestError
from tests.fake_launcher import FakeLauncher
from tests.frontend.frontend_run import TIMEOUT_S, FrontendRun, final, make_config

KEY, OTHER, ADMIN_KEY = "sk-one-of-mine", "sk-second", "sk-operator"

Pairs = list[tuple[bytes, bytes]]


def bearer(key: str) -> Pairs:
    return [(b"authorization", f"Bearer {key}".encode())]


def test_a_known_key_passes_and_others_do_not():
    keys = Keys((KEY, OTHER))
    for token in (f"Bearer {KEY}", f"bearer {OTHER}", f"Bearer  {KEY}"):
        keys.check("client", [(b"host", b"x"), (b"authorization", token.encode())])
    for token in ("", "Bearer", "Bearer ", f"Basic {KEY}", KEY, f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer é"):
        with pytest.raises(UnauthorizedError) as error:
            keys.check("client", [(b"authorization", token.encode("latin-1"))])
        assert KEY not in error.value.info.message
    with pytest.raises(UnauthorizedError, match="Authorization: Bearer"):
        keys.check("client", [])


def test_a_key_may_come_as_anthropics_clients_send_it():
    keys = Keys((KEY,), (ADMIN_KEY,))
    keys.check("client", [(b"x-api-key", KEY.encode())])
    keys.check("client", [(b"x-api-key", b"none"), *bearer(KEY)])
    keys.check("operator", [(b"x-api-key", ADMIN_KEY.encode())])
    for headers in ([(b"x-api-key", b"none")], [(b"x-api-key", b"")], [*bearer("none"), (b"x-api-key", KEY.encode())]):
        with pytest.raises(UnauthorizedError):
            keys.check("client", headers)


def test_what_is_public_and_a_server_without_keys_are_open():
    Keys((KEY,), (ADMIN_KEY,)).check("public", [])
    Keys().check("client", [])
    Keys((), (ADMIN_KEY,)).check("client", [])


def test_without_a_key_no_one_is_the_operator():
    for headers in ([], bearer(""), bearer(KEY)):
        with pytest.raises(RequestError, match=r"launch\.py.*--admin-key") as error:
            Keys().check("operator", headers)
        assert error.value.info.status == 403


def test_an_api_key_makes_an_operator_only_where_there_is_no_admin_key():
    Keys((KEY,)).check("operator", bearer(KEY))
    both = Keys((KEY,), (ADMIN_KEY,))
    both.check("operator", bearer(ADMIN_KEY))
    both.check("client", bearer(ADMIN_KEY))
    both.check("client", bearer(KEY))
    for keys in (both, Keys((), (ADMIN_KEY,))):
        for headers in ([], bearer(KEY), bearer("")):
            with pytest.raises(UnauthorizedError, match="admin key"):
                keys.check("operator", headers)


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch):
    compared: list[bytes] = []

    def compare(provided: bytes, known: bytes) -> bool:
        compared.append(known)
        return provided == known

    monkeypatch.setattr("hmac.compare_digest", compare)
    Keys((KEY, OTHER), (ADMIN_KEY,)).check("client", bearer(KEY))
    assert compared == [KEY.encode(), OTHER.encode(), ADMIN_KEY.encode()]


@pytest.mark.parametrize("flag", ["--api-key", "--admin-key"])
def test_keys_come_from_flags_and_a_file(tmp_path: Path, flag: str):
    file = tmp_path / "keys"
    file.write_text(f"# ours\n{OTHER}\n\n  sk-third  \n{KEY}\n")
    assert read_keys(flag, (KEY, f"@{file}")) == (KEY, OTHER, "sk-third")
    assert read_keys(flag, ()) == ()


@pytest.mark.parametrize(
    ("content", "fragment"), [(None, "cannot be read"), (b"", "no key"), (b"# none\n \n", "no key"), (b"\xff", "text")]
)
def test_a_file_without_keys_is_refused(tmp_path: Path, content: bytes | None, fragment: str):
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BootError, match=f"--admin-key.*{fragment}"):
        read_keys("--admin-key", (f"@{file}",))


@pytest.mark.parametrize("key", ["", "a b", "é", "a\n"])
def test_a_key_that_no_header_can_carry_is_refused(key: str):
    with pytest.raises(BootError, match="--api-key"):
        read_keys("--api-key", (key,))


@pytest.mark.parametrize("field", ["api_key", "admin_key"])
def test_a_server_does_not_start_without_the_keys_it_was_notified_of(tmp_path: Path, field: str):
    keys: dict[str, Any] = {field: (f"@{tmp_path / 'none'}",)}
    http = HttpConfig(port=0, **keys)
    with FakeLauncher(make_config(http)) as launcher:
        launcher.start("frontend")
        assert "cannot be read" in launcher.wait_for("frontend", BootFailed).message
        assert launcher.wait_exit("frontend") == 1


def test_every_path_but_the_public_ones_needs_a_key_and_none_is_notified():
    http = HttpConfig(port=0, api_key=(KEY, OTHER), admin_key=(ADMIN_KEY,))
    authorized = {"Authorization": f"Bearer {OTHER}"}
    with FrontendRun(make_config(http, run=RunConfig(log_requests=True)), headers=authorized) as run:
        with httpx.Client(base_url=run.url, timeout=TIMEOUT_S) as stranger:
            for path in ("/v1/models", "/metrics", "/openapi.json", "/server_info", "/load", "/nothing"):
                refused = stranger.get(path)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == "Bearer"
                assert refused.json()["error"]["type"] == "authentication_error"
                assert refused.headers["x-request-id"]
            for path in ("/admin/restart/scheduler", "/start_profile", "/stop_profile"):
                assert stranger.post(path).status_code == 401
                assert run.client.post(path).status_code == 401, "an API key is not enough"
            for path in ("/generate", "/v1/completions", "/v1/chat/completions", "/tokenize", "/flush_cache"):
                assert stranger.post(path, json={"prompt": "a"}).status_code == 401
            wrong = stranger.get("/v1/models", headers={"Authorization": "Bearer wrong-secret"})
            assert wrong.status_code == 401
            for path in ("/health", "/ping", "/version"):
                assert stranger.get(path).status_code == 200
        with run.call({"stream": False}, authorized) as call:
            run.send(final(run.take_request()))
            assert call.response.status == 200
        reported = [run.client.get(path).text for path in ("/server_info", "/metrics", "/openapi.json", "/health")]
        assert '"api_key":["***","***"]' in reported[0]
        assert '"admin_key":["***"]' in reported[0]
        described = run.client.get("/openapi.json").json()["paths"]
        assert described["/generate"]["post"]["security"] == [{"api_key": []}]
        assert described["/admin/processes"]["get"]["security"] == [{"admin_key": []}]
        assert "security" not in described["/health"]["get"]
        reported += [wrong.text, run.launcher.log_text("frontend")]
        secrets = (KEY, OTHER, ADMIN_KEY, "wrong-secret")
        assert not [text for text in reported for secret in secrets if secret in text]
