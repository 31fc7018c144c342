"""The OpenAPI description is valid, complete, and correct for its own examples."""

import asyncio
import re
from typing import Any

import jsonschema
import pytest
from starlette.requests import Request

from frontend.api.generate.generate import GenerateBody
from frontend.api.openai.completions import CompletionBody
from frontend.http import openapi
from frontend.http.body import BodyDecoder
from frontend.http.keys import Keys
from frontend.http.openapi import OpenApiApi
from tests.frontend.frontend_run import FrontendRun, final


@pytest.fixture
def document(server: FrontendRun) -> dict[str, Any]:
    return server.client.get("/openapi.json").json()


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in references(value)]
    return [found for value in node for found in references(value)] if isinstance(node, list) else []


def test_it_is_made_once_and_not_before_someone_asks(monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []
    monkeypatch.setattr(openapi, "make_document", lambda endpoints, version, *_: made.append(version) or {})
    api = OpenApiApi([], version="7", root_path="", keys=Keys())
    assert not made
    for _ in range(2):
        asyncio.run(api.describe(Request({"type": "http"})))
    assert made == ["7"]


def test_every_reference_leads_somewhere(document: dict[str, Any]):
    assert document["openapi"] == "3.1.0"
    schemas = document["components"]["schemas"]
    found = references(document)
    assert len(found) > 50
    assert {name.removeprefix("#/components/schemas/") for name in found} <= set(schemas)
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)


WITH_BODY = {"/cache/explain", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
"""Endpoints of the operator."""


def test_all_paths_are_described_and_exist(server: FrontendRun, document: dict[str, Any]):
    expected = {"/generate", "/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{id}", "/tokenize"}
    expected |= {"/detokenize", "/health", "/health/generate", "/metrics", "/version", "/server_info", "/openapi.json"}
    expected |= {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
    expected |= {"/load", "/ping", "/abort_request", "/flush_cache", "/requests", "/requests/{id}"}
    expected |= {"/cache/explain", "/cache/tree", "/live", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"}
    expected |= {"/v1/responses/{id}", "/v1/responses/{id}/cancel", "/v1/responses/{id}/input_items"}
    expected |= {"/v1/files", "/v1/files/{id}", "/v1/files/{id}/content", "/v1/batches", "/v1/batches/{id}"}
    expected |= {"/v1/batches/{id}/cancel", "/v1/responses/input_tokens", "/v1/chat/completions/input_tokens"}
    expected |= {
        "/v1/embeddings",
        "/v2/embed",
        "/pooling",
        "/classify",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/v1/score",
        "/score",
    }
    expected |= {"/embed", "/similarity", "/v1/decisions", "/infill"}
    expected |= {"/admin/processes", "/admin/restart/{process}", "/admin/snapshot", "/start_profile", "/stop_profile"}
    expected |= {f"/api/{name}" for name in ("chat", "generate", "embed", "embeddings", "show")}
    expected |= {f"/api/{name}" for name in ("tags", "ps", "version")}
    assert set(document["paths"]) == expected
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            refused = server.client.request("PUT", re.sub(r"{\w+}", "m", path))
            if "administration" in operation["tags"]:  # there is no key
                assert refused.status_code == 403
            else:
                assert refused.status_code == 405
                allowed = set(refused.headers["allow"].split(", "))
                assert allowed == {name.upper() for name in operations} | ({"HEAD"} if "get" in operations else set())
            assert {"200", "400", "403", "500", "503"} <= set(operation["responses"])
            has_body = method == "post" and ("administration" not in operation["tags"] or path in WITH_BODY)
            has_body = has_body and not path.endswith("/cancel")
            assert has_body == ("requestBody" in operation)
            assert has_body == ("415" in operation["responses"])
            assert "401" not in operation["responses"]


def test_the_examples_are_valid(document: dict[str, Any]):
    num_examples = 0
    for operations in document["paths"].values():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json")
        for example in (content or {}).get("examples", {}).values():
            schema = {**content["schema"], "components": document["components"]}
            jsonschema.validate(example["value"], schema)
            num_examples += 1
    assert num_examples >= 12


@pytest.mark.parametrize(("name", "struct"), [("GenerateBody", GenerateBody), ("CompletionBody", CompletionBody)])
def test_the_schema_reports_what_the_decoder_takes(document: dict[str, Any], name: str, struct: Any):
    schema = document["components"]["schemas"][name]
    assert list(schema["properties"]) == list(struct.__struct_encode_fields__)
    assert BodyDecoder(struct)
    temperature = schema["properties"]["temperature"]["anyOf"][0]
    assert (temperature["minimum"], temperature["maximum"]) == (0, 2)
    assert schema["required"] == ["prompt"]


def test_a_reply_is_as_described(server: FrontendRun, document: dict[str, Any]):
    asked = server.ask("/generate", {"prompt": "a", "stream": False})
    server.send(final(server.take_request(), "ok", (1, 2)))
    content = document["paths"]["/generate"]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}
    jsonschema.validate(
        asked.response().json(), {**content["application/json"]["schema"], "components": document["components"]}
    )
