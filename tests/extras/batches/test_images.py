"""Images as files of `/v1/files`, and in the lines of a batch, with the official clients."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from extras.batches.config import BatchConfig
from tests.extras.batches.test_batches_api import create, upload
from tests.frontend.frontend_run import FrontendRun, final, wait_until
from tests.frontend.images.test_chat_images import data_url, picture, vision_config

WIDE = picture(40, 20)


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontendRun]:
    batch = BatchConfig(batch_dir=str(tmp_path_factory.mktemp("batches")))
    with FrontendRun(batch.put_into(vision_config(max_image_mb=0.01))) as run:
        yield run


def ask(run: FrontendRun, path: str, body: Any) -> list[tuple[int, int]]:
    """Returns the sizes of the images that a request brings, and answers it."""
    asked = run.ask(path, {"model": "m", **body})
    message = run.take_request()
    run.send(final(message, "A line."))
    assert asked.response().status_code == 200
    return [(image.width, image.height) for image in message.images]


def test_a_request_names_an_image_by_its_file(batches: FrontendRun, tmp_path: Path):
    file = tmp_path / "a.png"
    file.write_bytes(WIDE)
    with openai.OpenAI(base_url=f"{batches.url}/v1", api_key="x", max_retries=0) as client:
        created = client.files.create(file=file, purpose="vision")
        assert client.files.content(created.id).content == WIDE
    part = {"type": "input_image", "file_id": created.id}
    assert ask(batches, "/v1/responses", {"input": [{"role": "user", "content": [part]}]}) == [(40, 20)]
    block = {"type": "image", "source": {"type": "file", "file_id": created.id}}
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": [block]}]}
    assert ask(batches, "/v1/messages", body) == [(40, 20)]
    large = upload(batches, picture() + bytes(20_000), purpose=(None, "user_data")).json()["id"]
    for file_id, words in (("file-1", "there is no file 'file-1'"), (large, "(--max-image-mb)")):
        body = {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": file_id}]}]}
        refused = batches.client.post("/v1/responses", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith("input[0].content[0]: ")
        assert words in refused.json()["error"]["message"]


def test_the_lines_of_a_batch_have_images(batches: FrontendRun):
    file_id = upload(batches, WIDE, purpose=(None, "vision")).json()["id"]
    chat = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(WIDE)}}]}]
    items = [{"role": "user", "content": [{"type": "input_image", "file_id": file_id}]}]
    for url, body in (("/v1/chat/completions", {"messages": chat}), ("/v1/responses", {"input": items})):
        line = json.dumps({"custom_id": "a", "method": "POST", "url": url, "body": body}).encode()
        batch = create(batches, upload(batches, line).json()["id"], endpoint=url).json()
        message = batches.take_request()
        assert [(image.width, image.height) for image in message.images] == [(40, 20)]
        batches.send(final(message, "A line."))
        path = f"/v1/batches/{batch['id']}"
        wait_until(lambda path=path: batches.client.get(path).json()["status"] == "completed")
    wait_until(lambda: batches.gauge("image_bytes") == 0)


def test_without_a_directory_the_flag_is_named():
    with FrontendRun(vision_config()) as run:
        part = {"type": "input_image", "file_id": "file-1"}
        refused = run.client.post("/v1/responses", json={"input": [{"role": "user", "content": [part]}]})
        assert refused.status_code == 400
        assert "--batch-dir" in refused.json()["error"]["message"]
