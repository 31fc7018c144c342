from pathlib import Path

import httpx
import pytest

from frontend.http.keys import ApiKeys, UnauthorizedError, load_keys
from messages.config import HttpConfig, RunConfig
from messages.control import BootFailed
from messages.errors import BootError
from tests.fake_launcher import FakeLauncher
from tests.frontend.frontend_run import FrontendRun, final, make_config

KEY, OTHER = "sk-one-of-mine", "sk-second"


def test_a_known_key_passes_and_others_do_not():
    keys = ApiKeys((KEY, OTHER))
    for token in (f"Bearer {KEY}", f"bearer {OTHER}", f"Bearer  {KEY}"):
        keys.check("/generate", [(b"host", b"x"), (b"authorization", token.encode())])
    for token in ("", "Bearer", "Bearer ", f"Basic {KEY}", KEY, f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer é"):
        with pytest.raises(UnauthorizedError) as error:
            keys.check("/metrics", [(b"authorization", token.encode("latin-1"))])
        assert KEY not in error.value.info.message
    with pytest.raises(UnauthorizedError, match="Authorization: Bearer"):
        keys.check("/nothing", [])


def test_public_paths_and_a_server_without_keys_are_open():
    for path in ("/health", "/ping", "/version"):
        ApiKeys((KEY,)).check(path, [])
    with pytest.raises(UnauthorizedError):
        ApiKeys((KEY,)).check("/health/generate", [])
    ApiKeys(()).check("/generate", [])


def test_keys_come_from_flags_and_a_file(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text(f"# ours\n{OTHER}\n\n  sk-third  \n{KEY}\n")
    assert load_keys(HttpConfig(api_key=(KEY,), api_key_file=str(file))) == (KEY, OTHER, "sk-third")
    assert load_keys(HttpConfig()) == ()


@pytest.mark.parametrize(
    ("content", "fragment"), [(None, "cannot be read"), (b"", "no key"), (b"# none\n \n", "no key"), (b"\xff", "text")]
)
def test_a_file_without_keys_is_refused(tmp_path: Path, content: bytes | None, fragment: str):
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BootError, match=fragment):
        load_keys(HttpConfig(api_key_file=str(file)))


@pytest.mark.parametrize("key", ["", "a b", "é", "a\n"])
def test_a_key_that_no_header_can_carry_is_refused(key: str):
    with pytest.raises(BootError, match="--api-key"):
        load_keys(HttpConfig(api_key=(key,)))


def test_a_server_does_not_start_without_the_keys_it_was_told_of(tmp_path: Path):
    with FakeLauncher(make_config(HttpConfig(port=0, api_key_file=str(tmp_path / "none")))) as launcher:
        launcher.start("frontend")
        assert "cannot be read" in launcher.wait_for("frontend", BootFailed, timeout_s=30).message
        assert launcher.wait_exit("frontend") == 1


def test_every_path_but_the_public_ones_needs_a_key_and_none_is_told():
    http = HttpConfig(port=0, api_key=(KEY, OTHER))
    authorized = {"Authorization": f"Bearer {OTHER}"}
    with FrontendRun(make_config(http, run=RunConfig(log_requests=True)), headers=authorized) as run:
        with httpx.Client(base_url=run.url) as stranger:
            for path in ("/v1/models", "/metrics", "/openapi.json", "/server_info", "/load", "/nothing"):
                refused = stranger.get(path)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == "Bearer"
                assert refused.json()["error"]["type"] == "authentication_error"
                assert refused.headers["x-request-id"]
            for path in ("/generate", "/v1/completions", "/v1/chat/completions", "/tokenize", "/flush_cache"):
                assert stranger.post(path, json={"prompt": "a"}).status_code == 401
            wrong = stranger.get("/v1/models", headers={"Authorization": "Bearer wrong-secret"})
            assert wrong.status_code == 401
            for path in ("/health", "/ping", "/version"):
                assert stranger.get(path).status_code == 200
        with run.call({"stream": False}, authorized) as call:
            run.send(final(run.take_request()))
            assert call.response.status == 200
        told = [run.client.get(path).text for path in ("/server_info", "/metrics", "/openapi.json", "/health")]
        assert '"api_key":["***","***"]' in told[0]
        told += [wrong.text, run.launcher.log_text("frontend")]
        assert not [text for text in told if KEY in text or OTHER in text or "wrong-secret" in text]
