"""`/v1/embeddings`, `/pooling` and `/classify`: what a body requests, the shape of replies, refused bodies."""

import struct
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from messages.columns import unpack_int32
from messages.config.pooling import PoolingFacts
from messages.errors import bad_request
from messages.ring.requests import Pooling, Truncation
from tests.extras.embeddings.ring import answer, post
from tests.frontend.frontend_run import FrontendRun, final, make_config

VECTOR = [0.6, -0.8]
QUERY, DOCUMENT = "Instruct: find it\nQuery: ", "title: none | text: "


@pytest.fixture(scope="module")
def encoder() -> Iterator[FrontendRun]:
    """A frontend of a model of embeddings, with prompts."""
    prompts = {"query": QUERY, "document": DOCUMENT, "plain": ""}
    pooling = PoolingFacts(kind="embed", pooling="mean", prompts=prompts, is_encoder=True, generates=False)
    config = make_config()
    facts = msgspec.structs.replace(config.facts, pooling=pooling)
    with FrontendRun(msgspec.structs.replace(config, facts=facts)) as run:
        yield run


def test_vectors_are_in_the_order_of_the_inputs(server: FrontendRun):
    reply, messages = post(server, "/v1/embeddings", {"input": ["a", "b"], "model": "m"}, VECTOR, [1, 0])
    assert [message.prompt_text for message in messages] == ["a", "b"]
    assert reply.pop("id").startswith("pool-")
    assert reply.pop("created") > 1.7e9
    floats = struct.unpack("2f", struct.pack("2f", *VECTOR))
    assert reply == {
        "object": "list",
        "model": "m",
        "data": [
            {"object": "embedding", "index": 0, "embedding": list(floats)},
            {"object": "embedding", "index": 1, "embedding": [1, 0]},
        ],
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
    }
    params = messages[0].sampling_params
    assert (params.max_tokens, params.is_streamed) == (0, False)
    assert params.pooling == Pooling("embed", normalizes=True)  # a model without files about vectors


def test_base64_is_little_endian_float32_as_clients_of_openai_request_it(server: FrontendRun):
    reply, _ = post(server, "/v1/embeddings", {"input": "a", "encoding_format": "base64"}, VECTOR)
    assert struct.unpack("<2f", b64decode(reply["data"][0]["embedding"])) == struct.unpack(
        "2f", struct.pack("2f", *VECTOR)
    )


@pytest.mark.parametrize(("provided", "ids"), [([5, 6], [[5, 6]]), ([[5], [6, 7]], [[5], [6, 7]])])
def test_token_ids_are_taken_as_they_are(encoder: FrontendRun, provided: Any, ids: list[list[int]]):
    _, messages = post(encoder, "/v1/embeddings", {"input": provided, "input_type": "query"}, *([VECTOR] * len(ids)))
    assert [unpack_int32(message.prompt_ids).tolist() for message in messages] == ids


def test_a_chat_is_rendered_without_a_generation_prompt(server: FrontendRun):
    body = {"messages": [{"role": "user", "content": "hi"}]}
    _, (message,) = post(server, "/v1/embeddings", body, VECTOR)
    assert message.chat is not None
    assert not message.chat.add_generation_prompt
    assert not message.add_special_tokens


@pytest.mark.parametrize(
    ("fields", "before"),
    [
        ({}, ""),
        ({"prompt_name": "query"}, QUERY),
        ({"input_type": "search_query"}, QUERY),
        ({"input_type": "passage"}, DOCUMENT),
        ({"input_type": "classification"}, ""),
    ],
)
def test_prompts_of_the_model(encoder: FrontendRun, fields: dict[str, str], before: str):
    _, (message,) = post(encoder, "/v1/embeddings", {"input": "a", **fields}, VECTOR)
    assert message.prompt_text == before + "a"
    assert message.sampling_params.pooling == Pooling("embed", normalizes=True, way="mean", is_whole=True)


def test_texts_are_cut_on_the_right_if_asked(server: FrontendRun):
    for fields, expected in (
        ({}, None),
        ({"truncate_prompt_tokens": -1}, Truncation(512, "right")),
        ({"truncate_prompt_tokens": 7, "truncation_side": "left"}, Truncation(7, "left")),
    ):
        _, (message,) = post(server, "/v1/embeddings", {"input": "a", **fields}, VECTOR)
        assert message.truncation == expected


def test_dimensions_and_normalization(server: FrontendRun):
    body = {"input": "a", "dimensions": 2, "normalize": False, "priority": 3, "cache_salt": "s"}
    _, (message,) = post(server, "/v1/embeddings", body, VECTOR)
    params = message.sampling_params
    assert params.pooling == Pooling("embed", dimensions=2, normalizes=False)
    assert (params.priority, params.cache_salt) == (3, "s")


def test_more_dimensions_than_the_model_has(server: FrontendRun):
    asked = server.ask("/v1/embeddings", {"input": "a", "dimensions": 3})
    answer(server, VECTOR)
    response = asked.response()
    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        "dimensions must be at most 2, the length of the model's vectors, got 3"
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({}, "input"),
        ({"input": "a", "messages": [{"role": "user", "content": "hi"}]}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "prompt_name": "query"}, "prompt_name"),
        ({"input": "a", "truncate_prompt_tokens": 513}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "output_dtype": "int8"}, "output_dtype"),
        ({"input": "a", "encoding_fromat": "float"}, "encoding_fromat"),
        ({"input": ["a"] * 1300}, "input"),
    ],
)
def test_refused_bodies(server: FrontendRun, body: Any, param: str):
    response = server.client.post("/v1/embeddings", json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not server.arrived()


def test_an_unknown_model_is_not_found(server: FrontendRun):
    response = server.client.post("/v1/embeddings", json={"input": "a", "model": "text-embedding-3-small"})
    assert response.status_code == 404


def test_the_error_of_one_text_names_it_and_ends_the_others(server: FrontendRun):
    asked = server.ask("/v1/embeddings", {"input": ["a", "b"]})
    first, second = server.take_request(), server.take_request()
    error = bad_request("This model's maximum context length is 4 tokens, the request has 5 in the prompt").info
    server.send(final(second, finish_reason="error", error=error))
    response = asked.response()
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input[1]")
    assert server.take_abort().uid == first.uid
    server.send(final(first, finish_reason="abort"))


def test_pooling_returns_a_vector_for_each_token(encoder: FrontendRun):
    reply, (message,) = post(encoder, "/pooling", {"input": "a", "task": "token_embed"}, [1, 2, 3, 4], num_rows=2)
    assert reply["data"] == [{"object": "pooling", "index": 0, "data": [[1, 2], [3, 4]]}]
    assert message.sampling_params.pooling.kind == "token_embed"
    reply, _ = post(encoder, "/pooling", {"input": "a"}, VECTOR)
    assert len(reply["data"][0]["data"]) == 2


def test_a_model_of_embeddings_has_no_classes_and_answers_no_questions(encoder: FrontendRun):
    response = encoder.client.post("/classify", json={"input": "a"})
    assert response.status_code == 400
    assert "no classification head" in response.json()["error"]["message"]
    question = {"type": "predicate", "instructions": "b"}
    response = encoder.client.post("/v1/decisions", json={"input": "a", "questions": [question]})
    assert response.status_code == 400
    assert "generates no text" in response.json()["error"]["message"]


def test_a_client_that_leaves_ends_its_texts(server: FrontendRun):
    call = server.call({"input": ["a", "b"]}, path="/pooling")
    with call:
        messages = [server.take_request(), server.take_request()]
        call.leave()
        assert {server.take_abort().uid for _ in messages} == {message.uid for message in messages}
    for message in messages:
        server.send(final(message, finish_reason="abort"))


def test_tei_embeds_with_its_own_errors(encoder: FrontendRun):
    body = {"inputs": ["a", "b"], "prompt_name": "document", "truncate": True, "truncation_direction": "Left"}
    reply, messages = post(encoder, "/embed", body, [1, 0], [0, 1])
    assert reply == [[1, 0], [0, 1]]
    assert messages[0].prompt_text == DOCUMENT + "a"
    assert messages[0].truncation == Truncation(512, "left")
    response = encoder.client.post("/embed", json={"inputs": []})
    assert response.status_code == 400
    assert response.json() == {"error": response.json()["error"], "error_type": "Validation"}
    assert response.json()["error"].startswith("inputs must be")


def test_tei_compares_by_the_cosine(encoder: FrontendRun):
    inputs = {"source_sentence": "a", "sentences": ["b", "a"]}
    asked = encoder.ask("/similarity", {"inputs": inputs, "parameters": {"prompt_name": "plain"}})
    messages = answer(encoder, [0.8, 0.6], [1, 0])
    assert [message.prompt_text for message in messages] == ["b", "a"]  # each text once
    assert asked.response().json() == pytest.approx([0.8, 1.0])
