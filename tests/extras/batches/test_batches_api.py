"""`/v1/files` and `/v1/batches` as clients see them: shapes, pages, and what is refused."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from extras.batches.config import BatchConfig
from messages.control.admin import Ask, DrainServer
from tests.extras.embeddings.ring import answer
from tests.frontend.frontend_run import TIMEOUT_S, FrontendRun, final, make_config, step, wait_until

URL = "/v1/completions"
FORM = {"purpose": (None, "batch")}


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontendRun]:
    batch = BatchConfig(batch_dir=str(tmp_path_factory.mktemp("batches")), max_batch_file_mb=0.01, batch_dir_gb=5e-5)
    with FrontendRun(batch.put_into(make_config())) as run:
        yield run


def upload(run: FrontendRun, content: bytes, **fields: Any) -> httpx.Response:
    return run.client.post("/v1/files", files={**FORM, "file": ("../in.jsonl", content), **fields})


def line(custom_id: str, **body: Any) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": URL, "body": {"prompt": "hi", **body}}).encode()


def create(run: FrontendRun, file_id: str, **fields: Any) -> httpx.Response:
    body = {"input_file_id": file_id, "endpoint": URL, "completion_window": "24h", **fields}
    return run.client.post("/v1/batches", json=body)


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    return response.json()["error"]


def test_without_a_directory_all_is_refused_with_the_flag_to_give(server: FrontendRun):
    for path in ("/v1/files", "/v1/files/x", "/v1/files/x/content", "/v1/batches", "/v1/batches/x"):
        assert "--batch-dir" in error_of(server.client.get(path), 404)["message"]
    assert "--batch-dir" in error_of(upload(server, b"{}"), 404)["message"]
    assert "--batch-dir" in error_of(create(server, "x"), 404)["message"]


def test_a_batch_from_its_upload_to_its_results(batches: FrontendRun):
    file = upload(batches, line("a", max_tokens=1) + b"\n" + line("b", temperature=7)).json()
    assert (file["object"], file["filename"], file["purpose"]) == ("file", "in.jsonl", "batch")
    batch = create(batches, file["id"], metadata={"key": "value"}).json()
    assert (batch["object"], batch["status"], batch["metadata"]) == ("batch", "validating", {"key": "value"})
    message = batches.take_request()
    assert message.sampling_params.priority == 100
    batches.replies.send(step([(message, 7, "ho")], finals=(final(message),)))
    path = f"/v1/batches/{batch['id']}"
    wait_until(lambda: batches.client.get(path).json()["status"] == "completed")
    batch = batches.client.get(path).json()
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    output, errors = (
        json.loads(batches.client.get(f"/v1/files/{batch[name]}/content").content)
        for name in ("output_file_id", "error_file_id")
    )
    assert (output["custom_id"], output["response"]["body"]["choices"][0]["text"]) == ("a", "ho")
    assert (errors["custom_id"], errors["response"]["body"]["error"]["param"]) == ("b", "temperature")
    assert "completed" in error_of(batches.client.post(f"{path}/cancel"), 409)["message"]


def test_responses_in_a_batch_are_not_stored_unless_they_report_so(batches: FrontendRun):
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/responses", "body": {"input": name, **fields}}
        for name, fields in (("a", {}), ("b", {"store": True}), ("c", {"max_output_tokens": 0}))
    ]
    file_id = upload(batches, b"\n".join(json.dumps(each).encode() for each in lines)).json()["id"]
    path = f"/v1/batches/{create(batches, file_id, endpoint='/v1/responses').json()['id']}"
    for message in [batches.take_request() for _ in range(2)]:
        assert message.sampling_params.priority == 100
        batches.replies.send(step([(message, 7, "ho")], finals=(final(message, finish_reason="stop"),)))
    wait_until(lambda: batches.client.get(path).json()["status"] == "completed")
    batch = batches.client.get(path).json()
    content = batches.client.get(f"/v1/files/{batch['output_file_id']}/content").text
    by_id = {result["custom_id"]: result["response"]["body"] for result in map(json.loads, content.splitlines())}
    assert [reply["output"][0]["content"][0]["text"] for reply in by_id.values()] == ["ho"] * 2
    stored = {name: batches.client.get(f"/v1/responses/{reply['id']}").status_code for name, reply in by_id.items()}
    assert stored == {"a": 404, "b": 200}
    failure = json.loads(batches.client.get(f"/v1/files/{batch['error_file_id']}/content").content)
    assert failure["response"]["body"]["error"]["param"] == "max_output_tokens"


def test_vectors_in_a_batch(batches: FrontendRun):
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": ["x", "y"]}}
    file_id = upload(batches, json.dumps(line).encode()).json()["id"]
    path = f"/v1/batches/{create(batches, file_id, endpoint='/v1/embeddings').json()['id']}"
    messages = answer(batches, [1.0, 0.0], [0.0, 1.0])
    assert {message.sampling_params.priority for message in messages} == {100}
    wait_until(lambda: batches.client.get(path).json()["status"] == "completed")
    output = batches.client.get(f"/v1/files/{batches.client.get(path).json()['output_file_id']}/content").json()
    assert [entry["embedding"] for entry in output["response"]["body"]["data"]] == [[1, 0], [0, 1]]


def test_a_batch_whose_lines_are_bad_fails(batches: FrontendRun):
    file_id = upload(batches, line("a") + b"\n" + line("a")).json()["id"]
    path = f"/v1/batches/{create(batches, file_id).json()['id']}"
    wait_until(lambda: batches.client.get(path).json()["status"] == "failed")
    (error,) = batches.client.get(path).json()["errors"]["data"]
    assert (error["line"], error["code"], error["param"]) == (2, "duplicate_custom_id", "custom_id")


def test_files_and_batches_come_in_pages(batches: FrontendRun):
    ids = [upload(batches, b"x").json()["id"] for _ in range(5)][::-1]
    pages: list[str] = []
    after: dict[str, str] = {}
    for _ in range(2):
        page = batches.client.get("/v1/files", params={"limit": 2, "purpose": "batch", **after}).json()
        pages += [file["id"] for file in page["data"]]
        assert (page["first_id"], page["last_id"], page["has_more"]) == (pages[-2], pages[-1], True)
        after = {"after": pages[-1]}
    assert pages == ids[:4]
    oldest = batches.client.get("/v1/files", params={"order": "asc"}).json()["data"]
    assert [file["id"] for file in oldest[-5:]] == ids[::-1]
    assert error_of(batches.client.get("/v1/batches", params={"limit": 101}), 400)["param"] == "limit"
    assert error_of(batches.client.get("/v1/batches", params={"order": "asc"}), 400)["param"] == "order"
    for file_id in ids:
        assert batches.client.delete(f"/v1/files/{file_id}").json() == {
            "id": file_id,
            "deleted": True,
            "object": "file",
        }
        error_of(batches.client.get(f"/v1/files/{file_id}/content"), 404)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"purpose": (None, "fine-tune")}, "purpose"),
        ({"file": (None, "text")}, "filename"),
        ({"expires_after[seconds]": (None, "60")}, "expires_after"),
        ({"other": ("second.jsonl", b"x")}, "two files"),
    ],
)
def test_a_form_that_is_wrong(batches: FrontendRun, fields: dict[str, Any], message: str):
    assert message in error_of(upload(batches, b"{}", **fields), 400)["message"]


def test_an_upload_that_is_none_or_too_large(batches: FrontendRun):
    error_of(batches.client.post("/v1/files", json={}), 415)
    error_of(batches.client.post("/v1/files", content=b"", headers={"Content-Type": "multipart/form-data"}), 400)
    assert "the file is larger than" in error_of(upload(batches, b"x" * 100_000), 413)["message"]
    for _ in range(9):
        response = upload(batches, b"x" * 9_000)
    assert "--batch-dir-gb" in error_of(response, 413)["message"]
    for file in batches.client.get("/v1/files").json()["data"]:
        batches.client.delete(f"/v1/files/{file['id']}")


def test_unfinished_uploads_count_against_the_quota_and_go_with_their_clients(batches: FrontendRun):
    head = "POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    begun = (
        f'{head}Content-Length: 10000\r\n\r\n--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    )
    with ExitStack() as stack:
        open_uploads = [stack.enter_context(socket.create_connection(batches.address)) for _ in range(5)]
        for upload_socket in open_uploads:
            upload_socket.sendall(begun.encode())
        uploads = Path(BatchConfig.of(batches.config).batch_dir) / "files"
        wait_until(lambda: [path.stat().st_size for path in uploads.glob("*.upload")] == [10_000] * 5)
        assert "--batch-dir-gb" in upload(batches, b"x" * 8_000).text
        refused = stack.enter_context(socket.create_connection(batches.address))
        refused.settimeout(TIMEOUT_S)
        refused.sendall(begun.encode())
        assert refused.recv(4096).startswith(b"HTTP/1.1 413"), "refused before its body has come"
    wait_until(lambda: upload(batches, b"x" * 8_000).status_code == 200)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"endpoint": "/tokenize"}, 400, "endpoint"),
        ({"completion_window": "soon"}, 400, "completion_window"),
        ({"metadata": {"key": 5}}, 400, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, 400, "output_expires_after"),
        ({"input_file_id": "../lock"}, 404, None),
    ],
)
def test_a_batch_that_cannot_be(batches: FrontendRun, fields: dict[str, Any], status: int, param: str | None):
    file_id = upload(batches, b"x", **{"expires_after[seconds]": (None, "3600")}).json()["id"]
    assert error_of(create(batches, file_id, **fields), status)["param"] == param


def test_a_file_is_run_and_then_the_server_is_asked_to_end(tmp_path: Path):
    (tmp_path / "in").write_bytes(line("a") + b"\n" + line("b", temperature=7))
    files = (str(tmp_path / "in"), str(tmp_path / "out"))
    with FrontendRun(BatchConfig(batch_run=files).put_into(make_config())) as run:
        message = run.take_request()
        run.replies.send(step([(message, 7, "ho")], finals=(final(message),)))
        assert isinstance(run.launcher.wait_for("frontend", Ask).command, DrainServer)
    results = [json.loads(text) for text in (tmp_path / "out").read_text().splitlines()]
    assert {result["custom_id"]: result["response"]["status_code"] for result in results} == {"a": 200, "b": 400}


def test_a_directory_that_cannot_be_used_ends_the_start(tmp_path: Path):
    (tmp_path / "file").touch()
    config = BatchConfig(batch_dir=str(tmp_path / "file")).put_into(make_config())
    run = FrontendRun(config)
    with pytest.raises(AssertionError), run:
        pass
