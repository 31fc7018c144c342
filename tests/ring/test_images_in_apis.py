"""A picture in every API of a real server: the same answer and counts, and another answer to another picture."""

import base64
from typing import Any

import httpx
import pytest

from tests.frontend.images.test_chat_images import data_url, image_part, picture
from tests.ring.client import TIMEOUT_S, RingClient

pytestmark = [pytest.mark.ring, pytest.mark.timeout(600)]

NUM_TOKENS = 12
WORDS = "What is it?"
PICTURES = (picture(60, 40, "red"), picture(60, 40, "blue"), picture(90, 20, "green"))


def post(ring: RingClient, path: str, **body: Any) -> dict[str, Any]:
    reply = httpx.post(f"{ring.url}{path}", json={"model": "m", **body}, timeout=TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    return reply.json()


def chat_body(image: bytes) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [image_part(data_url(image)), {"type": "text", "text": WORDS}]}]}


def block_body(image: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(image).decode()}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": WORDS}]
    return {"messages": [{"role": "user", "content": blocks}]}


def item_body(image: bytes) -> dict[str, Any]:
    parts = [{"type": "input_image", "image_url": data_url(image)}, {"type": "input_text", "text": WORDS}]
    return {"input": [{"role": "user", "content": parts}]}


def answers(ring: RingClient, image: bytes) -> dict[str, tuple[str, int]]:
    """Returns the greedy answer and the number of prompt tokens in each API."""
    limits = {"max_tokens": NUM_TOKENS, "temperature": 0}
    chat = post(ring, "/v1/chat/completions", **chat_body(image), **limits)
    response = post(ring, "/v1/responses", **item_body(image), max_output_tokens=NUM_TOKENS, temperature=0)
    message = post(ring, "/v1/messages", **block_body(image), **limits)
    options = {"num_predict": NUM_TOKENS, "temperature": 0}
    plain = [{"role": "user", "content": WORDS, "images": [base64.b64encode(image).decode()]}]
    line = post(ring, "/api/chat", messages=plain, options=options, stream=False)
    one = post(ring, "/api/generate", prompt=WORDS, images=plain[0]["images"], options=options, stream=False)
    (shown,) = response["output"]
    usage = message["usage"]
    assert chat["usage"]["prompt_tokens_details"]["image_tokens"] > 0
    assert response["usage"]["input_tokens_details"]["image_tokens"] > 0
    return {
        "chat": (chat["choices"][0]["message"]["content"], chat["usage"]["prompt_tokens"]),
        "responses": (shown["content"][0]["text"], response["usage"]["input_tokens"]),
        "messages": (message["content"][0]["text"], usage["input_tokens"] + usage["cache_read_input_tokens"]),
        "ollama chat": (line["message"]["content"], line["prompt_eval_count"]),
        "ollama generate": (one["response"], one["prompt_eval_count"]),
    }


def test_the_same_picture_has_the_same_answer_in_every_api(image_ring: RingClient):
    texts: set[str] = set()
    for image in PICTURES:
        found = set(answers(image_ring, image).values())
        assert len(found) == 1, found
        texts |= {text for text, _ in found}
    assert len(texts) > 1, "the pictures are not seen"


def test_counts_are_those_of_the_request(image_ring: RingClient):
    image = PICTURES[2]
    _, num_tokens = answers(image_ring, image)["chat"]
    assert post(image_ring, "/tokenize", **chat_body(image))["count"] == num_tokens
    assert post(image_ring, "/v1/chat/completions/input_tokens", **chat_body(image))["input_tokens"] == num_tokens
    assert post(image_ring, "/v1/responses/input_tokens", **item_body(image))["input_tokens"] == num_tokens
    assert post(image_ring, "/v1/messages/count_tokens", **block_body(image))["input_tokens"] == num_tokens


def test_a_continued_response_sees_the_picture_of_the_first(image_ring: RingClient):
    limits = {"max_output_tokens": NUM_TOKENS, "temperature": 0}
    texts: list[tuple[str, int]] = []
    for image in PICTURES[:2]:
        first = post(image_ring, "/v1/responses", **item_body(image), **limits)
        again = post(image_ring, "/v1/responses", input="And?", previous_response_id=first["id"], **limits)
        items = [*item_body(image)["input"], *first["output"], {"role": "user", "content": "And?"}]
        whole = post(image_ring, "/v1/responses", input=items, **limits)
        assert again["output"][0]["content"] == whole["output"][0]["content"]
        assert again["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
        texts.append((again["output"][0]["content"][0]["text"], again["usage"]["input_tokens"]))
    assert texts[0] != texts[1]


def test_a_picture_of_a_tool_is_seen(image_ring: RingClient):
    seen: set[str] = set()
    for image in PICTURES[:2]:
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages = [
            {"role": "user", "content": WORDS},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": [image_part(data_url(image))]},
        ]
        reply = post(image_ring, "/v1/chat/completions", messages=messages, max_tokens=NUM_TOKENS, temperature=0)
        assert reply["usage"]["prompt_tokens_details"]["image_tokens"] > 0
        seen.add(reply["choices"][0]["message"]["content"])
    assert len(seen) == 2


def test_a_prompt_of_text_has_its_pictures_first(image_ring: RingClient):
    body = {"prompt": WORDS, "max_tokens": NUM_TOKENS, "temperature": 0, "stream": False}
    images = [[], [data_url(PICTURES[0])], [data_url(PICTURES[1])]]
    url = f"{image_ring.url}/generate"
    found = [httpx.post(url, json={**body, "images": some}, timeout=TIMEOUT_S).json() for some in images]
    assert len({reply["text"] for reply in found}) > 1
    counts = [reply["usage"].get("image_tokens", 0) for reply in found]
    assert counts[0] == 0
    assert counts[1] == counts[2] > 0
