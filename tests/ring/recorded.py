"""Requests as clients sent them, and what these clients read of the replies.

Each `clients/NAME.json` has a client with its version, and its calls. Long texts are cut, ids are zeros, and of many
tools some are left. `reads` has JSON pointers into the reply, which for a stream is the list of its objects, each with
a value or, as `<int>`, the type of one; `text` is the text of all objects.
"""

import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tests.ring.client import TIMEOUT_S

CLIENTS = Path(__file__).with_name("clients")
RECORDED = sorted(file.stem for file in CLIENTS.glob("*.json"))
TYPES = {"<str>": str, "<int>": int, "<float>": float, "<list>": list, "<object>": dict}
TEXTS = (
    *("/message/content", "/response", "/choices/0/delta/content", "/choices/0/message/content", "/choices/0/text"),
    *("/delta/text", "/content/0/text"),
)
"""Where the objects of different APIs have text."""


class Call(msgspec.Struct, forbid_unknown_fields=True):
    method: str
    path: str
    headers: dict[str, str]
    body: Any = None
    status: int = 200
    type: str = "application/json"
    reads: dict[str, Any] = {}


class Client(msgspec.Struct, forbid_unknown_fields=True):
    client: str
    calls: list[Call]


def read_calls(name: str) -> list[Call]:
    return msgspec.json.decode((CLIENTS / f"{name}.json").read_bytes(), type=Client).calls


def check(url: str, call: Call) -> None:
    """Sends a call and compares its reply with what the client reads."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    body = None if call.body is None else json.dumps(call.body)
    connection.request(call.method, call.path, body, call.headers)
    reply = connection.getresponse()
    content = reply.read().decode()
    connection.close()
    assert (reply.status, reply.getheader("content-type", "").split(";")[0]) == (call.status, call.type), content
    objects = objects_of(call, content)
    whole = objects if call.type in ("application/x-ndjson", "text/event-stream") else objects[0] if objects else None
    for pointer, expected in call.reads.items():
        if pointer == "text":
            found = "".join(filter(None, (find(each, path) for each in objects for path in TEXTS)))
        else:
            found = find(whole, pointer)
        if isinstance(expected, str) and expected in TYPES:
            assert isinstance(found, TYPES[expected]), (call.path, pointer, found)
        else:
            assert found == expected, (call.path, pointer, found)


def objects_of(call: Call, content: str) -> list[Any]:
    """Returns the JSON values of a reply. A stream must be whole."""
    if call.type == "text/event-stream":
        data = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: ")]
        if "completions" in call.path:
            assert data.pop() == "[DONE]"
        return [json.loads(line) for line in data]
    return [json.loads(line) for line in content.splitlines()]


def find(value: Any, pointer: str) -> Any:
    """Returns what the pointer names, else `None`. An index of a list may count from its end."""
    for name in pointer.split("/")[1:]:
        try:
            value = value[int(name)] if isinstance(value, list) else value[name]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value
