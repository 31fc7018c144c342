"""20 bad inputs: each gets a clear refusal, and the server is as before."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ring.client import RingClient

pytestmark = pytest.mark.ring

GOOD: dict[str, Any] = {"prompt": [5, 6, 7, 8], "max_tokens": 8}

BAD_INPUTS: list[tuple[bytes | dict[str, Any], str]] = [
    (b"", "JSON"),
    (b'{"prompt": "x"', "JSON"),
    (b"\xff\xfe{}", "UTF-8"),
    (b"[1, 2]", "object"),
    ({}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": ["a"]}, "prompt"),
    ({"prompt": [5, -1]}, "-1"),
    ({"prompt": [5, 100_000]}, "100000"),
    ({"prompt": [5] * 300}, "maximum context length is 256 tokens"),
    ({"prompt": "x " * 50_000}, "maximum context length is 256 tokens"),
    ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "x", "max_tokens": True}, "max_tokens"),
    ({"prompt": "x", "temperature": 2.5}, "temperature"),
    ({"prompt": "x", "temperature": "hot"}, "temperature"),
    (b'{"prompt": "x", "temperature": NaN}', "JSON"),
    ({"prompt": "x", "top_p": 0}, "top_p"),
    ({"prompt": "x", "top_k": -2}, "top_k"),
    ({"prompt": "x", "stop": ["a"] * 17}, "stop"),
    ({"prompt": "x", "temprature": 1.0}, "temperature"),
]


@pytest.fixture(scope="module")
def ring(tiny_checkpoint: Path, start_ring: Any) -> RingClient:
    return start_ring(tiny_checkpoint, "--dtype", "float32")


@pytest.mark.parametrize(("bad", "named"), BAD_INPUTS)
def test_each_is_refused_clearly_and_changes_nothing(ring: RingClient, bad: bytes | dict[str, Any], named: str):
    before = ring.generate(**GOOD)
    content = {"content": bad} if isinstance(bad, bytes) else {"json": bad}
    reply = httpx.post(f"{ring.url}/generate", timeout=10.0, **content)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert named in error["message"], error
    assert error["type"] == "invalid_request_error"
    after = ring.generate(**GOOD)
    assert (after.token_ids, after.text) == (before.token_ids, before.text)
