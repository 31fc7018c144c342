"""What a replica of Ray Serve does, over real HTTP; Serve itself where it is installed."""

import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from deploy import ray_serve
from tests.frontend.frontend_run import wait_until
from tests.tiny_llama import write_tiny_llama

TIMEOUT_S = 90.0
BODY = {"prompt": "To be", "max_tokens": 200, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-llama")
    write_tiny_llama(path)
    return path


@pytest.fixture(scope="module")
def replica(checkpoint: Path) -> Iterator[ray_serve.Server]:
    flags = "--cpu-threads 1 --no-standby --speculative none --admin-key test-key --max-snapshots 0"
    replica = ray_serve.Server(f"--model {checkpoint} {flags}")
    yield replica
    replica.close()


@pytest.fixture(scope="module")
def client(replica: ray_serve.Server) -> Iterator[httpx.Client]:
    """A client of the replica, in place of Serve's proxy."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with replica.client:
            yield

    app = Starlette(routes=[Route("/{path:path}", replica.__call__, methods=["GET", "POST"])], lifespan=lifespan)
    server = uvicorn.Server(uvicorn.Config(app, port=0, ws="none", log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started, TIMEOUT_S)
    host, port = server.servers[0].sockets[0].getsockname()
    with httpx.Client(base_url=f"http://{host}:{port}", timeout=TIMEOUT_S) as client:
        yield client
    server.should_exit = True
    thread.join()


def test_status_head_query_and_body_are_the_servers(client: httpx.Client):
    whole = client.post("/generate", json={**BODY, "stream": False})
    assert whole.status_code == 200
    assert len(whole.json()["token_ids"]) == BODY["max_tokens"]
    assert client.get("/requests", params={"limit": 1}).json()["requests"][0]["uid"] == whole.json()["uid"]
    refused = client.post("/generate", content=b"{", headers={"content-type": "application/json"})
    assert refused.status_code == 400
    assert refused.headers["content-type"] == "application/json"
    assert client.get("/nothing").status_code == 404


def test_a_stream_comes_event_by_event(client: httpx.Client):
    with client.stream("POST", "/generate", json={**BODY, "stream": True}) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        pieces = [piece for piece in reply.iter_raw() if piece]
    assert len(pieces) > 10, "in pieces, as they came"
    assert b"".join(pieces).endswith(b"data: [DONE]\n\n")


def test_a_client_that_leaves_ends_its_request(client: httpx.Client):
    with client.stream("POST", "/generate", json={**BODY, "max_tokens": 240, "request_id": "leaver"}) as reply:
        next(reply.iter_raw())
    wait_until(lambda: _of(client, "leaver")["state"] != "running", TIMEOUT_S)
    assert _of(client, "leaver")["finish_reason"] == "abort"


def test_an_operators_command_does_not_pass(client: httpx.Client):
    reply = client.post("/admin/restart/tokenizer", headers={"authorization": "Bearer test-key"})
    assert reply.status_code == 403


def test_an_argument_that_there_is_not_is_named():
    with pytest.raises(msgspec.ValidationError, match="max_replica"):
        ray_serve.app({"max_replica": "2"})


def test_a_replica_without_its_server_is_not_healthy(checkpoint: Path):
    with pytest.raises(RuntimeError, match="exited with code 2"):
        ray_serve.Server(f"--model {checkpoint} --no-such-flag")


def _of(client: httpx.Client, request_id: str) -> dict[str, Any]:
    found = client.get("/requests").json()["requests"]
    return next(one for one in found if one["request_id"] == request_id)
