"""Images in `POST /v1/chat/completions`, with a ring played by the test and a real process that decodes."""

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from frontend.images.store import ImageStore
from messages.config.http import HttpConfig
from messages.ring.requests import TokenizeMsg
from tests.frontend.frontend_run import FrontendRun, final, make_config, step, table, wait_until
from tests.frontend.images.pictures import PATH, TEXT, data_url, image_part, picture, user, vision_config

PLACE = "messages[0].content[0]"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def server() -> Iterator[FrontendRun]:
    with FrontendRun(vision_config(max_images=3, max_image_mb=0.05, image_max_tokens=500)) as run:
        yield run


def messages_of(message: TokenizeMsg) -> Any:
    assert message.chat is not None
    return json.loads(message.chat.messages)


def stored(server: FrontendRun) -> list[str]:
    """Returns the names of the files that there are for other processes."""
    directory = server.launcher.run_dir.images
    return sorted(path.name for path in directory.iterdir() if path.is_file()) if directory.exists() else []


def refusal(server: FrontendRun, *parts: Any, status: int = 400, **body: Any) -> str:
    """Returns the error of a chat with these parts."""
    response = server.client.post(PATH, json={"messages": [user(*parts)], **body})
    assert response.status_code == status, response.text
    wait_until(lambda: stored(server) == [])
    return response.json()["error"]["message"]


def digest(image: bytes) -> bytes:
    return hashlib.blake2b(image, digest_size=16).digest()


def test_an_image_becomes_a_file_and_a_place_in_the_messages(server: FrontendRun):
    image = picture()
    with server.call({"messages": [user(TEXT, image_part(image), TEXT)]}, path=PATH) as call:
        message = server.take_request()
        (found,) = message.images
        assert messages_of(message) == [user(TEXT, {"type": "image"}, TEXT)]
        assert (found.digest, found.width, found.height) == (digest(image), 30, 20)
        assert (found.param, found.max_tokens) == ("messages[0].content[1]", 500)
        assert (server.launcher.run_dir.images / found.digest.hex()).read_bytes() == image
        server.send(final(message, "red"))
        assert call.json()["choices"][0]["message"]["content"] == "red"
    wait_until(lambda: server.gauge("image_bytes") == 0)
    assert stored(server) == []


def test_images_of_all_roles_keep_their_order(server: FrontendRun):
    images = [picture(colour=colour) for colour in ("red", "green", "blue")]
    call_of_tool = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": [image_part(images[0])]},
        user(TEXT),
        {"role": "assistant", "content": None, "tool_calls": [call_of_tool]},
        {"role": "tool", "tool_call_id": "c", "content": [TEXT, image_part(images[1])]},
        user({"type": "input_image", "image_url": data_url(images[2]), "detail": "low"}),
    ]
    with server.call({"messages": messages}, path=PATH) as call:
        message = server.take_request()
        assert [found.digest for found in message.images] == [digest(image) for image in images]
        assert [found.max_tokens for found in message.images] == [500, 500, 256]
        assert messages_of(message)[3]["content"] == [TEXT, {"type": "image"}]
        server.send(final(message))
        assert call.json()["object"] == "chat.completion"


def test_choices_share_one_file_until_the_last_has_ended(server: FrontendRun):
    image = picture(colour="pink")
    parts = [image_part(image), image_part(image, detail="high")]
    with server.call({"messages": [user(*parts)], "n": 2, "stream": True}, path=PATH) as call:
        first, second = server.take_request(), server.take_request()
        assert first.images == second.images
        server.send(final(first, "a"))
        call.next_data()
        assert stored(server) == [digest(image).hex()]
        server.send(final(second, "b"))
        call.events()
    wait_until(lambda: server.gauge("image_bytes") == 0)
    assert stored(server) == []


def test_a_client_that_leaves_keeps_the_file_until_the_ring_has_dropped_its_request(server: FrontendRun):
    with server.call({"messages": [user(image_part(picture(colour="teal")))], "stream": True}, path=PATH) as call:
        message = server.take_request()
        server.send(step([(message, 1, "a")]))
        call.next_data()
    server.take_abort()
    assert len(stored(server)) == 1
    server.send(final(message, finish_reason="abort"))
    wait_until(lambda: server.gauge("image_bytes") == 0)
    assert stored(server) == []


def test_the_images_travel_with_each_attempt(server: FrontendRun):
    with server.call({"messages": [user(image_part(picture(colour="gold")))], "stream": True}, path=PATH) as call:
        message = server.take_request()
        server.send(step([(message, 1, "a")]))
        call.next_data()
        server.replace("scheduler", 2)
        again = server.take_request()
        assert (again.attempt, again.images) == (1, message.images)
        assert len(stored(server)) == 1
        server.send(final(again, "b"))
        call.events()
    wait_until(lambda: server.gauge("image_bytes") == 0)


def test_limits_of_pixels_pass(server: FrontendRun):
    body = {"messages": [user(image_part(picture()))], "mm_processor_kwargs": {"min_pixels": 64, "max_pixels": 4096}}
    with server.call(body, path=PATH) as call:
        message = server.take_request()
        assert [(found.min_pixels, found.max_pixels) for found in message.images] == [(64, 4096)]
        server.send(final(message))
        assert call.json()["object"] == "chat.completion"


def test_base64_may_have_line_breaks_or_the_url_alphabet_or_no_data_url(server: FrontendRun):
    image = picture(200, 100, "orange")
    plain = base64.b64encode(image).decode()
    forms = [
        base64.encodebytes(image).decode(),
        plain.rstrip("="),
        base64.urlsafe_b64encode(image).decode(),
        f"DATA:image/jpeg;base64,{plain}",
        "\n".join(plain),
    ]
    for form in forms:
        with server.call({"messages": [user(image_part(form))]}, path=PATH) as call:
            message = server.take_request()
            assert message.images[0].digest == digest(image)
            server.send(final(message))
            assert call.json()["object"] == "chat.completion"


def test_what_is_refused(server: FrontendRun):
    image = picture()
    assert "4 images, and may have 3 (--max-images)" in refusal(server, *[image_part(image)] * 4)
    large = picture(400, 400, kind="BMP")
    assert f"{PLACE}: the image has {len(large)} bytes or more" in refusal(server, image_part(large))
    assert f"{PLACE}: the image has 53334 bytes" in refusal(server, image_part("A" * 71112))
    assert f"{PLACE}: the image is not valid base64" in refusal(server, image_part("data:image/png;base64,A!AA"))
    assert f"{PLACE}: the image is not valid base64" in refusal(server, image_part("Ä"))
    assert "must be data:image/TYPE;base64,DATA" in refusal(server, image_part("data:image/png,abc"))
    assert "must be data:image/TYPE;base64,DATA" in refusal(server, image_part("data:" + "x" * 500))
    assert refusal(server, TEXT, image_part(b"no image")).startswith("messages[0].content[1]: ")
    assert refusal(server, image_part(picture(kind="JPEG")[:200])).startswith(f"{PLACE}: ")
    assert refusal(server, image_part("")).startswith(f"{PLACE}: ")
    assert "--image-urls none" in refusal(server, image_part("http://127.0.0.1/x.png"))
    assert "a URL must begin with data:" in refusal(server, image_part("file:///etc/passwd"))
    assert f"{PLACE}.detail: it must be one of auto" in refusal(server, image_part(image, detail="huge"))
    assert "image_url is required" in refusal(server, {"type": "image_url"})
    assert "is not supported" in refusal(server, {"type": "input_audio", "input_audio": {}})
    for limits in ({"min_pixels": 0}, {"max_pixels": "1"}, {"size": 1}, {"min_pixels": 9, "max_pixels": 8}):
        assert "mm_processor_kwargs" in refusal(server, image_part(image), mm_processor_kwargs=limits)
    assert "use_beam_search" in refusal(server, image_part(image), use_beam_search=True, n=2, temperature=0)
    assert server.arrived() == []


def test_a_model_without_a_tower_refuses_before_anything_is_decoded():
    with FrontendRun(make_config()) as run:
        for url in ("data:image/png;base64,####", "http://127.0.0.1:1/x.png"):
            error = refusal(run, image_part(url))
            assert error == f"{PLACE}: image input is not supported by this model"


def test_the_memory_for_images_is_bounded_over_all_requests():
    sizes = [picture(120, 120, kind="BMP", colour=f"#0000{number:02x}") for number in range(20)]
    with FrontendRun(vision_config(HttpConfig(port=0), max_image_mb=len(sizes[0]) / 2**20, max_images=9)) as run:
        with run.call({"messages": [user(*map(image_part, sizes[:8]))]}, path=PATH) as first:
            message = run.take_request()
            with run.call({"messages": [user(*map(image_part, sizes[8:16]))]}, path=PATH) as second:
                other = run.take_request()
                assert run.gauge("image_bytes") == 16 * len(sizes[0])
                response = run.client.post(PATH, json={"messages": [user(image_part(sizes[16]))]})
                assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
                run.send(final(other))
                assert second.json()["object"] == "chat.completion"
            wait_until(lambda: run.gauge("image_bytes") == 8 * len(sizes[0]))
            run.send(final(message))
            assert first.json()["object"] == "chat.completion"
        wait_until(lambda: run.gauge("image_bytes") == 0)


def test_the_files_of_a_dead_frontend_go_with_the_next_table():
    with FrontendRun(vision_config(), is_ready=False) as run:
        dead = ImageStore(run.launcher.run_dir.images, 7, 1000, lambda _: None)
        dead.put(b"of a request whose client is gone")
        assert len(stored(run)) == 1
        run.show(table())
        wait_until(lambda: stored(run) == [])
        assert not (run.launcher.run_dir.images / "7").exists()
