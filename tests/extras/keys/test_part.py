"""A frontend with `--api-keys`, its ring and its launcher played by the test."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from extras.keys.config import KeysConfig
from extras.keys.key_file import hash_of
from messages.config.server import Config, HttpConfig
from messages.ring.replies import Usage
from tests.frontend.frontend_run import FrontendRun, final, make_config, wait_until

FIELDS = {
    "team-a": 'share = 3\npriority = 2\nrequests_per_minute = 100\ntokens_per_minute = 10000\nmodels = ["m"]',
    "team-b": "max_running = 1",
    "poor": "requests_per_minute = 1\ntokens_per_minute = 50",
    "other": 'models = ["another", "org-*"]',
    "chief": "admin = true",
}
PLAIN, OPERATOR = "sk-plain", "sk-operator"
LIMITED = ("org/m", "m")


def write_keys(file: Path, fields: dict[str, str]) -> None:
    file.write_text("".join(f'[{name}]\nhash = "{hash_of(name)}"\n{text}\n' for name, text in fields.items()))


def with_keys(file: Path, config: Config) -> Config:
    return KeysConfig(api_keys=(str(file), f"{file}.usage")).put_into(config)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys.toml"
    write_keys(file, FIELDS)
    return file


@pytest.fixture
def run(key_file: Path) -> Iterator[FrontendRun]:
    config = make_config(HttpConfig(port=0, api_key=(PLAIN,), admin_key=(OPERATOR,)))
    with FrontendRun(with_keys(key_file, config), headers=bearer("chief")) as run:
        yield run


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def get(run: FrontendRun, key: str, path: str) -> httpx.Response:
    return run.client.get(path, headers=bearer(key))


def generate(run: FrontendRun, key: str, path: str = "/generate", **fields: Any) -> dict[str, Any]:
    """Returns the reply to a request of a key, with 3 prompt tokens, one of them cached, and 2 of output."""
    with run.call({"stream": False, **fields}, bearer(key), path) as call:
        run.send(final(run.take_request(), "ok", (1, 2), usage=Usage(3, 1, 2)))
        reply = call.json()
        assert call.response.status == 200, reply
        return reply


def usage_of(run: FrontendRun, key: str) -> dict[str, Any]:
    (view,) = [view for view in get(run, key, "/usage").json()["data"] if view["key"] == key]
    return view


def test_who_may_do_what(run: FrontendRun):
    for path, allowed in {
        "/v1/models": {*FIELDS, PLAIN, OPERATOR},
        "/requests": {*FIELDS, PLAIN, OPERATOR},
        "/metrics": {"chief", PLAIN, OPERATOR},
        "/admin/processes": {"chief", OPERATOR},
    }.items():
        for key in (*FIELDS, PLAIN, OPERATOR, "none"):
            if path.startswith("/admin") and key in allowed:
                continue  # the launcher is played, and does not answer
            status = get(run, key, path).status_code
            expected = 200 if key in allowed else 403 if key in FIELDS else 401
            assert status == expected, (path, key)
    assert run.client.get("/health", headers={"Authorization": ""}).status_code == 200
    reply = get(run, "team-a", "/metrics").json()["error"]
    assert (reply["code"], "team-a" in reply["message"]) == ("not_an_admin_key", True)


def test_the_key_its_share_and_its_priority_reach_the_scheduler(run: FrontendRun):
    for key, priority, expected in (("team-a", 0, 2), ("team-a", 9, 9), ("team-b", -7, -7), (PLAIN, 0, 0)):
        with run.call({"stream": False, "priority": priority}, bearer(key)) as call:
            message = run.take_request()
            assert message.client == (key if key in FIELDS else "127.0.0.1")
            assert message.share == (3 if key == "team-a" else 1)
            assert message.sampling_params.priority == expected
            run.send(final(message, "ok", (1,)))
            call.json()


def test_headers_and_usage(run: FrontendRun):
    with run.call({"stream": False, "prompt": "x" * 39}, bearer("team-a")) as call:
        run.send(final(run.take_request(), "ok", (1, 2), usage=Usage(30, 10, 20)))
        headers = dict(call.response.getheaders())
        call.json()
    shown = {name.removeprefix("x-ratelimit-"): value for name, value in headers.items() if "ratelimit" in name}
    assert shown == {
        "limit-requests": "100",
        "remaining-requests": "99",
        "reset-requests": "600ms",
        "limit-tokens": "10000",
        "remaining-tokens": "9990",
        "reset-tokens": "60ms",
    }
    wait_until(lambda: usage_of(run, "team-a")["requests"] == 1)
    view = usage_of(run, "team-a")
    assert {name: view[name] for name in ("prompt_tokens", "cached_tokens", "output_tokens", "running")} == {
        "prompt_tokens": 30,
        "cached_tokens": 10,
        "output_tokens": 20,
        "running": 0,
    }
    assert view["seconds"] > 0
    assert view["tokens_per_minute"]["limit"] == 10000
    metrics = get(run, "chief", "/metrics").text
    assert 'sluice_key_output_tokens_total{key="team-a"} 20.0' in metrics
    assert 'sluice_key_requests_total{key="poor"} 0.0' in metrics
    assert "127.0.0.1" not in metrics
    assert [view["key"] for view in get(run, "team-b", "/usage").json()["data"]] == ["team-b"]
    assert [view["key"] for view in get(run, "chief", "/usage").json()["data"]] == list(FIELDS)
    assert get(run, PLAIN, "/usage").json()["data"] == []


def test_a_prompt_with_several_choices_counts_once(run: FrontendRun):
    with run.call({"n": 2, "prompt": ["a", "b"], "max_tokens": 4}, bearer("team-a"), "/v1/completions") as call:
        for _ in range(4):
            run.send(final(run.take_request(), "ok", (1, 2), usage=Usage(3, 1, 2)))
        assert call.json()["usage"]["prompt_tokens"] == 6
    wait_until(lambda: usage_of(run, "team-a")["requests"] == 1)
    view = usage_of(run, "team-a")
    assert (view["prompt_tokens"], view["cached_tokens"], view["output_tokens"]) == (6, 2, 8)


def test_a_limit_of_requests_and_what_is_refused(run: FrontendRun):
    generate(run, "poor")
    for path, body in {
        "/generate": {"prompt": "hi"},
        "/v1/completions": {"prompt": "hi"},
        "/api/generate": {"model": "m", "prompt": "hi", "raw": True},
    }.items():
        reply = run.client.post(path, json=body, headers=bearer("poor"))
        assert reply.status_code == 429
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        assert reply.headers["x-ratelimit-remaining-requests"] == "0"
        error = reply.json()["error"]
        text = error if isinstance(error, str) else error["message"]
        assert text.startswith("Rate limit reached: the key poor has 1 requests a minute. Try again in ")
        if not isinstance(error, str):
            assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert usage_of(run, "poor")["limited"] == 3
    generate(run, "team-b")
    assert not run.arrived()


def test_a_limit_of_running_requests_ends_with_each(run: FrontendRun):
    with run.call({"stream": True}, bearer("team-b")) as call:
        message = run.take_request()
        refused = run.client.post("/generate", json={"prompt": "hi"}, headers=bearer("team-b"))
        assert refused.status_code == 429
        assert "1 requests at a time" in refused.json()["error"]["message"]
        assert usage_of(run, "team-b")["running"] == 1
        call.leave()
        assert run.take_abort().uid == message.uid
        wait_until(lambda: usage_of(run, "team-b")["running"] == 0)
        run.send(final(message, finish_reason="abort"))
    generate(run, "team-b")


def test_a_request_that_the_server_fails_costs_nothing(run: FrontendRun):
    many = {"prompt": ["a"] * 100, "n": 64, "max_tokens": 1}
    reply = run.client.post("/v1/completions", json=many, headers=bearer("poor"))
    assert reply.status_code >= 400, reply.text
    generate(run, "poor")


def test_models_are_those_of_the_key(run: FrontendRun):
    def ids(key: str) -> list[str]:
        return [card["id"] for card in get(run, key, "/v1/models").json()["data"]]

    assert ids("chief") == ["org/m", "m"]
    assert ids("team-a") == ["m"]
    assert ids("other") == []
    assert get(run, "team-a", "/v1/models/m").status_code == 200
    assert get(run, "team-a", "/v1/models/org/m").status_code == 404
    for body in ({"prompt": "hi"}, {"prompt": "hi", "model": "m"}):
        reply = run.client.post("/v1/completions", json=body, headers=bearer("other"))
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    generate(run, "team-a", "/v1/completions", model="m")


def test_requests_are_shown_to_their_own_key_and_aborted_by_it(run: FrontendRun):
    with run.call({"request_id": "mine"}, bearer("team-a"), "/v1/completions") as call:
        message = run.take_request()

        def shown(key: str) -> list[int]:
            return [line["uid"] for line in get(run, key, "/requests").json()["requests"]]

        assert [shown(key) for key in ("team-a", "team-b", PLAIN, "chief", OPERATOR)] == [
            [message.uid],
            [],
            [],
            [message.uid],
            [message.uid],
        ]
        assert get(run, "team-b", "/requests/mine").status_code == 404
        assert get(run, "team-a", "/requests/mine").status_code == 200
        for key in ("team-b", PLAIN):
            for body in ({"all": True}, {"uid": message.uid}, {"request_id": "mine"}):
                reply = run.client.post("/abort_request", json=body, headers=bearer(key)).json()
                assert reply["aborted"] == []
        reply = run.client.post("/abort_request", json={"all": True}, headers=bearer("team-a")).json()
        assert reply["aborted"] == [message.uid]
        assert run.take_abort().uid == message.uid
        run.send(final(message, finish_reason="abort"))
        call.json()


def test_a_response_in_the_background_is_limited_and_counted(run: FrontendRun):
    body = {"input": "hi", "background": True}
    run.client.headers.update(bearer("team-b"))
    asked = run.ask("/v1/responses", body)
    message = run.take_request()
    assert asked.response().status_code == 200
    assert usage_of(run, "team-b")["running"] == 1
    for _ in range(2):
        refused = run.client.post("/v1/responses", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    run.send(final(message, "ok", (1, 2), usage=Usage(3, 1, 2)))
    wait_until(lambda: usage_of(run, "team-b")["running"] == 0)
    assert usage_of(run, "team-b")["requests"] == 1


def test_stored_responses_belong_to_their_key(key_file: Path):
    config = with_keys(key_file, make_config())
    config = msgspec.structs.replace(config, facts=msgspec.structs.replace(config.facts, has_chat_template=True))
    with FrontendRun(config) as run:
        run.client.headers.update(bearer("team-a"))
        asked = run.ask("/v1/responses", {"input": "hi"})
        run.send(final(run.take_request(), "ok", (1, 2)))
        stored = asked.response().json()["id"]
        for key, status in (("team-b", 404), ("team-a", 200), ("chief", 200)):
            for path in (f"/v1/responses/{stored}", f"/v1/responses/{stored}/input_items"):
                assert get(run, key, path).status_code == status
            if status == 404:
                continued = {"input": "Continue.", "previous_response_id": stored}
                for other in (continued, {"input": [{"type": "item_reference", "id": f"msg_{stored}"}]}):
                    reply = run.client.post("/v1/responses", json=other, headers=bearer(key))
                    assert reply.status_code in (400, 404), reply.text
                assert run.client.delete(f"/v1/responses/{stored}", headers=bearer(key)).status_code == 404
        assert run.client.delete(f"/v1/responses/{stored}", headers=bearer("team-a")).status_code == 200


def test_a_change_of_the_file_is_followed_without_a_restart(run: FrontendRun, key_file: Path):
    write_keys(key_file, {**FIELDS, "new": "share = 7"})
    wait_until(lambda: get(run, "new", "/v1/models").status_code == 200)
    key_file.write_text('[team-a]\nhash = "broken"\n')
    wait_until(lambda: "the previous 6 keys stay" in run.launcher.log_text("frontend"))
    assert get(run, "new", "/v1/models").status_code == 200
    write_keys(key_file, {"chief": "admin = true"})
    wait_until(lambda: get(run, "team-a", "/v1/models").status_code == 401)


def test_no_key_is_in_the_log_and_names_are(run: FrontendRun):
    generate(run, "team-b")
    get(run, "none-of-these", "/v1/models")
    wait_until(lambda: "key=team-b" in run.launcher.log_text("frontend"))
    text = run.launcher.log_text("frontend")
    assert "none-of-these" not in text
    assert hash_of("team-b") not in text
    assert PLAIN not in text


def test_the_description_has_the_429_and_usage(run: FrontendRun):
    paths = json.loads(get(run, "chief", "/openapi.json").content)["paths"]
    responses = paths["/v1/messages"]["post"]["responses"]
    assert "Retry-After" in responses["429"]["headers"]
    assert "/usage" in paths
