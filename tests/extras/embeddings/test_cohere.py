"""`/v2/embed`: Cohere's bodies and replies, with a ring played by the test."""

import struct
from base64 import b64decode
from typing import Any

import pytest

from messages.ring.requests import Pooling, Truncation
from tests.extras.embeddings.ring import post
from tests.frontend.frontend_run import FrontendRun

PATH = "/v2/embed"
VECTOR = [0.5, -0.25]
BODY: dict[str, Any] = {"model": "m", "input_type": "search_document", "texts": ["a", "b"]}
"""As Cohere's SDK sends it."""


def test_vectors_come_by_type(server: FrontendRun):
    reply, messages = post(server, PATH, {**BODY, "embedding_types": ["float", "base64"]}, VECTOR, [1, 0])
    assert [message.prompt_text for message in messages] == ["a", "b"]
    assert reply.pop("id")
    packed = reply["embeddings"].pop("base64")
    assert struct.unpack("<2f", b64decode(packed[0])) == (0.5, -0.25)
    assert reply == {
        "embeddings": {"float": [VECTOR, [1, 0]]},
        "texts": ["a", "b"],
        "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 6}},
        "response_type": "embeddings_by_type",
    }


def test_without_types_vectors_are_floats_and_inputs_have_parts(server: FrontendRun):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    reply, (message,) = post(server, PATH, {"inputs": [{"content": parts}], "output_dimension": 2}, VECTOR)
    assert message.prompt_text == "a\nb"
    assert message.sampling_params.pooling == Pooling("embed", dimensions=2, normalizes=True)
    assert reply["embeddings"] == {"float": [VECTOR]}


@pytest.mark.parametrize(
    ("fields", "truncation"),
    [
        ({}, Truncation(512, "right")),
        ({"truncate": "END", "max_tokens": 7}, Truncation(7, "right")),
        ({"truncate": "START", "max_tokens": 100_000}, Truncation(512, "left")),
        ({"truncate": "NONE"}, None),
    ],
)
def test_long_texts_are_cut_unless_the_client_requests_an_error(
    server: FrontendRun, fields: dict[str, Any], truncation: Truncation | None
):
    _, messages = post(server, PATH, {**BODY, **fields}, VECTOR, VECTOR)
    assert {message.truncation for message in messages} == {truncation}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"texts": None}, "texts"),
        ({"inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "texts"),
        ({"texts": []}, "texts"),
        ({"texts": ["a", ""]}, "texts"),
        ({"texts": None, "inputs": [{"content": [{"type": "image_url"}]}]}, "inputs"),
        ({"embedding_types": ["int8"]}, "embedding_types"),
        ({"truncate": "MIDDLE"}, "truncate"),
        ({"images": ["data:"]}, "images"),
        ({"output_dimension": 0}, "output_dimension"),
    ],
)
def test_what_is_refused(server: FrontendRun, fields: dict[str, Any], param: str):
    refused = server.client.post(PATH, json={**BODY, **fields})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
