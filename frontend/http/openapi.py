"""`GET /openapi.json`: the HTTP API in OpenAPI 3.1, made from the route table and the structs that validate bodies."""

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request

from frontend.http.endpoint import Access, Endpoint
from frontend.http.keys import Keys
from frontend.http.responses import JsonReply

REF_TEMPLATE = "#/components/schemas/{name}"

ERRORS_OF_ALL = (400, 403, 431, 500, 503)
"""400 and 431: invalid HTTP is refused before it reaches an endpoint. 403: the Host or Origin is not allowed. 503: not
every process serves."""

ERRORS_OF_BODIES = (408, 413, 415)

KEY_SCHEMES: dict[Access, str] = {"client": "api_key", "overall": "api_key", "operator": "admin_key"}

Json = dict[str, Any]


class OpenApiApi:
    """Describes `endpoints` and this endpoint itself."""

    def __init__(self, endpoints: Sequence[Endpoint], *, version: str, root_path: str, keys: Keys):
        own = Endpoint("/openapi.json", self.describe, "This description", dict[str, Any])
        self.endpoints = [*endpoints, own]
        described = [endpoint for endpoint in self.endpoints if endpoint.is_described]
        self._make = partial(make_document, described, version, root_path, keys)
        self._reply: JsonReply | None = None

    async def describe(self, request: Request) -> JsonReply:
        if self._reply is None:  # takes 0.1 s, which would delay the start or the streams
            self._reply = JsonReply(await asyncio.to_thread(self._make))
        return self._reply


def make_document(endpoints: Iterable[Endpoint], version: str, root_path: str, keys: Keys) -> Json:
    """Returns the document; endpoints that need a key declare it."""
    schemas = _Schemas(endpoints)
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, schemas, needs_key=keys.are_needed(endpoint.access))
        if keys.have_limits and endpoint.body is not None and endpoint.access == "client":
            error = schemas.of(endpoint.error_form.struct)
            operation["responses"].setdefault("429", _error(429, error, _id_headers(endpoint)))
        paths.setdefault(endpoint.template, {})[endpoint.verb.lower()] = operation
    components: Json = {"schemas": schemas.components}
    schemes = {name: _BEARER for access, name in KEY_SCHEMES.items() if keys.are_needed(access)}
    if schemes:
        components["securitySchemes"] = schemes
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sluice", "version": version, "description": "An LLM inference server."},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": components,
    }


class _Schemas:
    """The JSON schemas of all types that endpoints use; structs are references into `components`."""

    def __init__(self, endpoints: Iterable[Endpoint]):
        types: list[Any] = [*dict.fromkeys(endpoint.error_form.struct for endpoint in endpoints)]
        for endpoint in endpoints:
            parameters = (parameter.schema for parameter in endpoint.parameters)
            types += [endpoint.body, endpoint.reply, *endpoint.events, *endpoint.other_replies.values(), *parameters]
        known = [kind for kind in types if kind is not None]
        found, components = msgspec.json.schema_components(known, ref_template=REF_TEMPLATE)
        self.components: Json = components
        self._by_type = list(zip(known, found, strict=True))

    def of(self, kind: Any) -> Json:
        return next(schema for known, schema in self._by_type if known is kind or known == kind)


def _operation(endpoint: Endpoint, schemas: _Schemas, *, needs_key: bool) -> Json:
    operation: Json = {
        "operationId": "_".join([endpoint.verb.lower(), *re.findall(r"\w+", endpoint.template)]),
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "responses": {str(status): reply for status, reply in _responses(endpoint, schemas, needs_key=needs_key)},
    }
    if endpoint.description:
        operation["description"] = endpoint.description
    if endpoint.parameters:
        operation["parameters"] = [
            {
                "name": parameter.name,
                "in": parameter.place,
                "required": parameter.place == "path",
                "schema": schemas.of(parameter.schema),
                "description": parameter.description,
            }
            for parameter in endpoint.parameters
        ]
    if endpoint.body is not None:
        examples = {name: {"value": value} for name, value in endpoint.examples.items()}
        content = {"schema": schemas.of(endpoint.body), **({"examples": examples} if examples else {})}
        operation["requestBody"] = {"required": True, "content": {endpoint.body_type: content}}
    if needs_key:
        operation["security"] = [{KEY_SCHEMES[endpoint.access]: []}]
    return operation


def _responses(endpoint: Endpoint, schemas: _Schemas, *, needs_key: bool) -> Iterator[tuple[int, Json]]:
    id_headers = _id_headers(endpoint)
    headers = {**id_headers, **_TIMING_HEADER} if endpoint.events and endpoint.reply else id_headers
    yield 200, {"description": _success_text(endpoint), "headers": headers, "content": _content(endpoint, schemas)}
    for status, kind in endpoint.other_replies.items():
        content = {"application/json": {"schema": schemas.of(kind)}}
        yield status, {"description": HTTPStatus(status).phrase, "headers": id_headers, "content": content}
    statuses = {*ERRORS_OF_ALL, *endpoint.errors}
    if endpoint.body is not None:
        statuses |= {*ERRORS_OF_BODIES}
    if needs_key:
        statuses.add(401)
    for status in sorted(statuses - set(endpoint.other_replies)):
        yield status, _error(status, schemas.of(endpoint.error_form.struct), id_headers)


def _content(endpoint: Endpoint, schemas: _Schemas) -> Json:
    if endpoint.reply is None and not endpoint.events:
        return {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "application/openmetrics-text")}
    content: Json = {}
    if endpoint.reply is not None:
        content["application/json"] = {"schema": schemas.of(endpoint.reply)}
    if endpoint.events:
        events = {"anyOf": [schemas.of(event) for event in (*endpoint.events, endpoint.error_form.struct)]}
        json_data = {"type": "string", "contentMediaType": "application/json", "contentSchema": events}
        content["text/event-stream"] = {
            "schema": {
                "type": "object",
                "required": ["data"],
                "properties": {"data": {"anyOf": [{"const": "[DONE]"}, json_data]}},
                "description": "One event, `data: {json}` and an empty line. An error is the last but one; the last "
                "is `data: [DONE]`. A line that begins with a colon keeps a silent stream alive.",
            }
        }
    return content


def _error(status: int, schema: Json, id_headers: Json) -> Json:
    headers: Json = dict(id_headers)
    if status in (429, 503):
        headers["Retry-After"] = _header("Seconds after which to try again.", {"type": "integer", "minimum": 1})
    if status == 401:
        headers["WWW-Authenticate"] = _header("The scheme, Bearer.")
    text = _ERROR_TEXTS.get(status, HTTPStatus(status).phrase)
    return {"description": text, "headers": headers, "content": {"application/json": {"schema": schema}}}


def _header(text: str, schema: Json | None = None) -> Json:
    return {"description": text, "schema": schema or {"type": "string"}}


def _id_headers(endpoint: Endpoint) -> Json:
    names = ("X-Request-Id", *filter(None, [endpoint.second_id_header]))
    return dict.fromkeys(names, _ID_HEADER)


def _success_text(endpoint: Endpoint) -> str:
    return "The whole reply or, with `stream`, its events." if endpoint.events and endpoint.reply else endpoint.summary


_BEARER: Json = {"type": "http", "scheme": "bearer"}

_ID_HEADER: Json = _header("The id of the request, as sent or as generated.")
_TIMING_HEADER: Json = {
    "Server-Timing": _header("For a whole reply: milliseconds per stage, and their sum as `total`.")
}

_ERROR_TEXTS = {
    400: "The request is invalid; `param` names the field.",
    401: "No key, or the key is not accepted.",
    403: "The Host or the Origin is not allowed; or the endpoint is only for the operator, on the same machine.",
    404: "The object or the model does not exist.",
    408: "The body did not arrive in time.",
    409: "Requests are running.",
    413: "The body is larger than --max-body-mb.",
    415: "The body has the wrong media type or none, or is compressed.",
    429: "Too many are open, or the key has reached a limit.",
    431: "The head of the request is too large.",
    500: "An error of the server; `message` has a reference to its log.",
    503: "The server is full, starting, draining, or one of its processes does not serve.",
    504: "The time for the request was over before it had a result.",
}
