"""Images that the official clients send in each API, with a ring played by the test and a real decoder."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import ollama
import openai
import pytest

from messages.columns import pack_int32
from messages.ring.replies import EncodeReply, PrefilledRow, PromptReply, Usage
from messages.ring.requests import EncodeMsg, TokenizeMsg
from tests.frontend.frontend_run import FrontendRun, InThread, final, step, wait_until
from tests.frontend.images.test_chat_images import data_url, picture, vision_config

if TYPE_CHECKING:  # every worker imports this file, and importing the client takes seconds
    from anthropic import Anthropic

WIDE, TALL = picture(40, 20), picture(20, 50, "blue")
DATA = base64.b64encode(WIDE).decode()
SIZES = [(40, 20), (20, 50)]
USAGE = Usage(30, 0, 2, 17)
PLACE = {"type": "image"}
SOURCE = {"type": "base64", "media_type": "image/png", "data": DATA}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {}}}


@pytest.fixture(scope="module")
def server() -> Iterator[FrontendRun]:
    with FrontendRun(vision_config(max_images=4)) as run:
        yield run


@pytest.fixture(scope="module")
def text_server() -> Iterator[FrontendRun]:
    with FrontendRun() as run:
        yield run


def answer(run: FrontendRun, send: Callable[[], Any]) -> tuple[Any, TokenizeMsg]:
    """Returns what a client gets, and the message that its request became."""
    thread = InThread(send)
    message = run.take_request()
    run.send(PromptReply(message.uid, 0, ""))
    run.send(step([(message, 5, "A line.")], prefilled=(PrefilledRow(message.uid, 0, USAGE),)))
    run.send(final(message, finish_reason="stop", usage=USAGE))
    return thread.result(), message


def contents(message: TokenizeMsg) -> list[Any]:
    assert message.chat is not None
    return [shown["content"] for shown in json.loads(message.chat.messages)]


def sizes(message: TokenizeMsg | EncodeMsg) -> list[tuple[int, int]]:
    return [(image.width, image.height) for image in message.images]


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


class Clients(NamedTuple):
    openai: openai.OpenAI
    anthropic: "Anthropic"
    ollama: ollama.Client


@pytest.fixture(scope="module")
def clients(server: FrontendRun) -> Iterator[Clients]:
    from anthropic import Anthropic

    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as of_openai,
        Anthropic(base_url=server.url, api_key="x", max_retries=0) as of_anthropic,
        ollama.Client(server.url) as of_ollama,
    ):
        yield Clients(of_openai, of_anthropic, of_ollama)


def test_responses(server: FrontendRun, clients: Clients):
    image = {"type": "input_image", "image_url": data_url(WIDE), "detail": "low"}
    asked = {"role": "user", "content": [{"type": "input_text", "text": "What is"}, image]}
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    seen = [{"type": "input_text", "text": "Seen:"}, {"type": "input_image", "image_url": data_url(TALL)}]
    output = {"type": "function_call_output", "call_id": "c", "output": seen}
    api: Any = clients.openai.responses
    reply, message = answer(server, lambda: api.create(model="m", input=[asked, call, output]))
    assert contents(message) == [[text("What is"), PLACE], "", [text("Seen:"), PLACE]]
    assert sizes(message) == SIZES
    assert [image.param for image in message.images] == ["input[0].content[1]", "input[2].output[1]"]
    assert message.images[0].max_tokens
    assert not message.images[1].max_tokens
    assert reply.usage.input_tokens_details.image_tokens == 17
    return_to = {"model": "m", "previous_response_id": reply.id}
    _, message = answer(server, lambda: api.create(input="And now?", **return_to))
    assert sizes(message) == SIZES
    assert contents(message)[-1] == "And now?"
    assert {image.param for image in message.images} == {
        "previous_response_id.content[1]",
        "previous_response_id.output[1]",
    }
    listed = server.client.get(f"/v1/responses/{reply.id}/input_items").json()["data"]
    assert listed[-1]["content"][1] == image


def test_anthropic(server: FrontendRun, clients: Clients):
    client = clients.anthropic
    image, url = {"type": "image", "source": SOURCE}, {"type": "url", "url": data_url(TALL)}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [text("Seen:"), {"type": "image", "source": url}]}
    messages: list[Any] = [
        {"role": "user", "content": [image, text("What is this?")]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
        {"role": "user", "content": [result, text("Well?")]},
    ]
    reply, message = answer(server, lambda: client.messages.create(model="m", max_tokens=9, messages=messages))
    assert contents(message) == [[PLACE, text("What is this?")], "", [text("Seen:"), PLACE], "Well?"]
    assert sizes(message) == SIZES
    assert reply.usage.input_tokens == 30
    counted = InThread(lambda: client.messages.count_tokens(model="m", messages=messages))
    asked = server.take(EncodeMsg)
    assert sizes(asked) == SIZES
    server.send(EncodeReply(asked.uid, pack_int32(range(30))))
    assert counted.result().input_tokens == 30


def test_anthropic_system_and_assistant(server: FrontendRun, clients: Clients):
    client = clients.anthropic
    image: Any = {"type": "image", "source": SOURCE}
    messages: list[Any] = [{"role": role, "content": [image]} for role in ("user", "assistant", "user")]
    _, message = answer(
        server, lambda: client.messages.create(model="m", max_tokens=9, system=[image], messages=messages)
    )
    assert contents(message) == [[PLACE]] * 4


def test_ollama_chat(server: FrontendRun, clients: Clients):
    client = clients.ollama
    messages = [
        {"role": "system", "content": "Look.", "images": [TALL]},
        {"role": "user", "content": "What is this?", "images": [WIDE]},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]},
        {"role": "tool", "content": "Seen:", "tool_name": "look", "images": [TALL]},
    ]
    reply, message = answer(server, lambda: client.chat("m", messages))
    assert contents(message) == [[PLACE, text("Look.")], [PLACE, text("What is this?")], "", [PLACE, text("Seen:")]]
    assert sizes(message) == [SIZES[1], *SIZES]
    assert message.images[1].param == "messages[1].images[0]"
    assert reply.prompt_eval_count == 30


def test_ollama_generate(server: FrontendRun, clients: Clients):
    client = clients.ollama
    _, message = answer(server, lambda: client.generate("m", "What is this?", images=[WIDE, TALL]))
    assert (contents(message), sizes(message)) == ([[PLACE, PLACE, text("What is this?")]], SIZES)
    _, message = answer(server, lambda: client.generate("m", "", images=[WIDE]))
    assert contents(message) == [[PLACE]]
    _, message = answer(server, lambda: client.generate("m", "as it is", raw=True, images=[WIDE]))
    assert (message.prompt_text, message.chat, sizes(message)) == ("as it is", None, SIZES[:1])
    with pytest.raises(ollama.ResponseError, match=r"images\[0\]: images are not supported here"):
        client.generate("m", "a", suffix="b", images=[WIDE])


def test_generate(server: FrontendRun):
    body = {"prompt": "What is this?", "images": [data_url(WIDE), DATA], "stream": False}
    reply, message = answer(server, lambda: server.client.post("/generate", json=body).json())
    assert (message.prompt_text, sizes(message)) == ("What is this?", SIZES[:1] * 2)
    assert reply["usage"] == {"prompt_tokens": 30, "cached_tokens": 0, "completion_tokens": 2, "image_tokens": 17}
    refused = server.client.post("/generate", json={**body, "prompt": [1, 2]}).json()["error"]
    assert (refused["param"], refused["message"][:28]) == ("images", "images need a prompt of text")


def test_chat_usage_and_tokenize(server: FrontendRun, clients: Clients):
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(WIDE)}}, text("a")]}]
    chats: Any = clients.openai.chat.completions
    reply, _ = answer(server, lambda: chats.create(model="m", messages=messages))
    assert reply.usage.prompt_tokens_details.image_tokens == 17
    body = {"messages": messages, "mm_processor_kwargs": {"max_pixels": 1000}}
    asked = server.ask("/tokenize", body)
    message = server.take(EncodeMsg)
    assert [(image.width, image.max_pixels) for image in message.images] == [(40, 1000)]
    server.send(EncodeReply(message.uid, pack_int32(range(30))))
    assert asked.response().json()["count"] == 30


USER_IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": "https://127.0.0.1:9/a.png"}]}]
INPUT_IMAGE = [{"role": "user", "content": [{"type": "input_image", "image_url": "https://127.0.0.1:9/a.png"}]}]
BLOCK = [
    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://127.0.0.1:9/a.png"}}]}
]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER_IMAGE},
    "/v1/chat/completions/input_tokens": {"messages": USER_IMAGE},
    "/tokenize": {"messages": USER_IMAGE},
    "/v1/responses": {"input": INPUT_IMAGE},
    "/v1/responses/input_tokens": {"input": INPUT_IMAGE},
    "/v1/messages": {"messages": BLOCK, "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": BLOCK},
    "/api/chat": {"model": "m", "messages": [{"role": "user", "content": "a", "images": [DATA]}]},
    "/api/generate": {"model": "m", "prompt": "a", "images": [DATA]},
    "/generate": {"prompt": "a", "images": [DATA]},
}


@pytest.mark.parametrize("path", BODIES)
def test_a_model_of_text_refuses_images_before_any_download(text_server: FrontendRun, path: str):
    reply = text_server.client.post(path, json=BODIES[path])
    assert reply.status_code == 400
    assert "image input is not supported by this model" in reply.text


REFUSING: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "images": [DATA]},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "images": [DATA]},
    "/v1/embeddings": {"messages": USER_IMAGE},
    "/v1/decisions": {"input": INPUT_IMAGE, "questions": [{"type": "predicate", "instructions": "It is red."}]},
}


@pytest.mark.parametrize("path", REFUSING)
def test_endpoints_without_images_refuse_them(server: FrontendRun, path: str):
    reply = server.client.post(path, json=REFUSING[path])
    assert reply.status_code == 400
    assert "image" in reply.json()["error"]["message"]
    assert "not supported" in reply.json()["error"]["message"]


def test_beam_search_refuses_them(server: FrontendRun):
    body = {"messages": USER_IMAGE, "use_beam_search": True, "num_beams": 2, "n": 2}
    reply = server.client.post("/v1/chat/completions", json=body)
    words = "use_beam_search cannot be combined with images"
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, words)


OTHER_PARTS = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": kind}]}]}, kind)
    for kind in ("video_url", "input_audio", "file")
] + [
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input_file"),
    (
        "/v1/messages",
        {
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}],
        },
        "document with a source of type base64",
    ),
]


@pytest.mark.parametrize(("path", "body", "named"), OTHER_PARTS)
def test_videos_sounds_and_files_are_refused(server: FrontendRun, path: str, body: dict[str, Any], named: str):
    reply = server.client.post(path, json=body)
    assert reply.status_code == 400
    assert f"'{named}' is not supported" in reply.json()["error"]["message"]


def test_an_image_of_a_tool_is_a_sentence_for_a_model_of_text(text_server: FrontendRun):
    output = [{"type": "input_image", "image_url": data_url(WIDE)}]
    items = [
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": output},
    ]
    _, message = answer(text_server, lambda: text_server.client.post("/v1/responses", json={"input": items}).json())
    assert contents(message)[-1].startswith("[This is left out")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": [""] * 200}] * 2}),
        ("/api/generate", {"prompt": "a", "images": [""] * 257}),
        ("/generate", {"prompt": "a", "images": [""] * 257}),
        ("/generate", {"prompt": "a", "images": [""] * 5}),
    ],
)
def test_lists_of_images_are_bounded_before_they_are_read(server: FrontendRun, path: str, body: dict[str, Any]):
    reply = server.client.post(path, json={"model": "m", **body})
    assert reply.status_code == 400
    assert "at most 256 images" in reply.text or "may have 4 (--max-images)" in reply.text


def test_a_background_response_keeps_its_images_until_it_has_ended(server: FrontendRun):
    part = {"type": "input_image", "image_url": data_url(WIDE)}
    asked = server.ask("/v1/responses", {"input": [{"role": "user", "content": [part]}], "background": True})
    message = server.take_request()
    response = asked.response().json()
    assert response["status"] == "in_progress"
    assert (server.launcher.run_dir.images / message.images[0].digest.hex()).exists()
    server.send(PromptReply(message.uid, 0, ""))
    server.send(final(message, "A line.", finish_reason="stop", usage=USAGE))
    path = f"/v1/responses/{response['id']}"
    wait_until(lambda: server.client.get(path).json()["status"] == "completed")


def test_nothing_is_kept(server: FrontendRun):
    wait_until(lambda: server.gauge("image_bytes") == 0)
    assert not [path for path in server.launcher.run_dir.images.rglob("*") if path.is_file()]
