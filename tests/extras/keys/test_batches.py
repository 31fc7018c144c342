"""Files and batches belong to the key that sends them, and their lines are its requests."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extras.batches.config import BatchConfig
from messages.config.server import HttpConfig
from messages.ring.replies import Usage
from tests.extras.keys.test_part import bearer, get, usage_of, with_keys, write_keys
from tests.frontend.frontend_run import FrontendRun, final, make_config, wait_until

FIELDS = {"a": "share = 5\nmax_running = 1", "b": "", "chief": "admin = true"}
PATHS = ("/v1/files", "/v1/batches")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FrontendRun]:
    write_keys(tmp_path / "keys.toml", FIELDS)
    config = make_config(HttpConfig(port=0, api_key=("sk-plain",)))
    config = with_keys(tmp_path / "keys.toml", config)
    config = BatchConfig(batch_dir=str(tmp_path / "batches")).put_into(config)
    with FrontendRun(config) as run:
        yield run


def upload(run: FrontendRun, key: str, num_lines: int) -> str:
    body = {"prompt": "hi", "max_tokens": 2}
    lines = [
        {"custom_id": str(index), "method": "POST", "url": "/v1/completions", "body": body}
        for index in range(num_lines)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    reply = run.client.post(
        "/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}, headers=bearer(key)
    )
    assert reply.status_code == 200, reply.text
    return reply.json()["id"]


def create(run: FrontendRun, key: str, file_id: str) -> Any:
    body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    return run.client.post("/v1/batches", json=body, headers=bearer(key))


def listed(run: FrontendRun, key: str) -> list[list[str]]:
    return [[one["id"] for one in get(run, key, path).json()["data"]] for path in PATHS]


def show(run: FrontendRun, key: str, batch_id: str) -> dict[str, Any]:
    return get(run, key, f"/v1/batches/{batch_id}").json()


def test_a_batch_and_its_files_are_those_of_one_key(run: FrontendRun):
    file_id = upload(run, "a", 3)
    assert create(run, "b", file_id).status_code == 404
    batch_id = create(run, "a", file_id).json()["id"]
    for _ in range(3):
        message = run.take_request()
        assert (message.client, message.share) == ("a", 5)
        wait_until(lambda: usage_of(run, "a")["running"] == 1)
        assert not run.arrived()
        run.send(final(message, "ok", (1, 2), usage=Usage(3, 0, 2)))
    wait_until(lambda: usage_of(run, "a")["requests"] == 3)
    assert usage_of(run, "a")["limited"] > 0  # the other lines have waited for the limit of the key
    wait_until(lambda: show(run, "a", batch_id)["status"] == "completed")
    record = show(run, "a", batch_id)
    assert record["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    output_id = record["output_file_id"]
    for key in ("a", "chief"):
        assert listed(run, key) == [[output_id, file_id], [batch_id]]
        assert get(run, key, f"/v1/files/{output_id}/content").status_code == 200
    for key in ("b", "sk-plain"):
        assert listed(run, key) == [[], []]
        for path in (f"/v1/files/{file_id}", f"/v1/files/{output_id}/content", f"/v1/batches/{batch_id}"):
            assert get(run, key, path).status_code == 404
        assert run.client.post(f"/v1/batches/{batch_id}/cancel", headers=bearer(key)).status_code == 404
        assert run.client.delete(f"/v1/files/{file_id}", headers=bearer(key)).status_code == 404
    assert run.client.delete(f"/v1/files/{file_id}", headers=bearer("a")).status_code == 200


def test_the_batch_of_a_revoked_key_is_cancelled(run: FrontendRun, tmp_path: Path):
    batch_id = create(run, "b", upload(run, "b", 2)).json()["id"]
    messages = [run.take_request()]
    write_keys(tmp_path / "keys.toml", {"chief": "admin = true"})
    wait_until(lambda: show(run, "chief", batch_id)["status"] in ("cancelling", "cancelled"))
    for message in messages:
        run.send(final(message, finish_reason="abort"))
    wait_until(lambda: show(run, "chief", batch_id)["status"] == "cancelled")
