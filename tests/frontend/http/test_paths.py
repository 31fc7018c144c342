"""Paths that do not exist, and the list of models as clients of both APIs parse it."""

from typing import Any

import pytest

from tests.frontend.frontend_run import FrontendRun

ENDS_IN_VERSION = "set a base URL that ends in /v1, so that the client asks for /v1"


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("POST", "/chat/completions", f"{ENDS_IN_VERSION}/chat/completions"),
        ("POST", "/completions", f"{ENDS_IN_VERSION}/completions"),
        ("POST", "/responses", f"{ENDS_IN_VERSION}/responses"),
        ("POST", "/messages", f"{ENDS_IN_VERSION}/messages"),
        ("GET", "/models", f"{ENDS_IN_VERSION}/models"),
        ("GET", "/responses/resp_1", f"{ENDS_IN_VERSION}/responses/resp_1"),
        ("POST", "/v1/v1/messages", "a base URL without /v1 at its end"),
        ("POST", "/v1/v1/chat/completions", "a base URL without /v1 at its end"),
    ],
)
def test_a_client_with_a_wrong_base_url_is_notified_the_right_one(
    server: FrontendRun, method: str, path: str, hint: str
):
    refused = server.client.request(method, path)
    assert refused.status_code == 404
    assert f"there is no {path} here: set {hint.removeprefix('set ')}" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/images", "/images", "/v1", "/v1/chat", "/chat", "/v1/v1/zzz"])
def test_other_paths_get_no_hint(server: FrontendRun, path: str):
    error = server.client.post(path, json={}).json()["error"]
    assert (error["message"], error["type"]) == (f"there is no {path} here", "not_found_error")


BELOW = ["/v1/messages/batches", "/v1/messages/batches/b/results", "/messages", "/v1/v1/messages"]


@pytest.mark.parametrize("path", BELOW)
def test_paths_below_messages_have_the_errors_of_their_api(server: FrontendRun, path: str):
    for method in ("GET", "POST"):
        refused = server.client.request(method, path)
        assert (refused.status_code, refused.json()["type"]) == (404, "error")
        assert refused.json()["error"]["type"] == "not_found_error"
        assert refused.headers["request-id"] == refused.headers["x-request-id"]


def test_a_method_that_only_a_neighbour_has_is_not_offered(server: FrontendRun):
    assert server.client.put("/v1/responses/input_tokens").headers["allow"] == "POST"
    assert server.client.put("/v1/responses/resp_1").headers["allow"] == "DELETE, GET, HEAD"


def test_models_are_listed_as_the_clients_of_both_apis_read_them(server: FrontendRun):
    pydantic: Any = pytest.importorskip("pydantic")
    openai: Any = pytest.importorskip("openai.types")
    anthropic: Any = pytest.importorskip("anthropic.types")
    of_anthropic = {"anthropic-version": "2023-06-01"}
    listed = server.client.get("/v1/models", headers=of_anthropic).json()
    first, model = listed["data"]
    assert (listed["object"], listed["has_more"]) == ("list", False)
    assert (listed["first_id"], listed["last_id"]) == (first["id"], model["id"]) == ("org/m", "m")
    for kind in (openai.Model, anthropic.ModelInfo):
        assert pydantic.TypeAdapter(kind).validate_python(model).id == "m"
    one = server.client.get("/v1/models/m", headers=of_anthropic).json()
    info = pydantic.TypeAdapter(anthropic.ModelInfo).validate_python(one)
    assert server.client.get("/v1/models/m").json() == {**one, "capabilities": ["completion"]}
    assert (info.display_name, info.created_at.timestamp()) == ("m", model["created"])
    assert info.max_input_tokens == model["max_model_len"]
