"""Parses streams of named events, such as OpenAI's responses and Anthropic's messages."""

import json
from typing import Any

from tests.frontend.frontend_run import Call


def next_event(call: Call) -> dict[str, Any]:
    """Returns the next event, whose name must be its type; `{}` at the end."""
    while (text := call.next_event()).startswith(":"):
        pass
    if not text:
        return {}
    name, data = text.split("\n")
    event = json.loads(data.removeprefix("data: "))
    assert name == f"event: {event['type']}"
    return event


def named_events(call: Call) -> list[dict[str, Any]]:
    """Returns all events that are left; there is no `[DONE]`."""
    return list(iter(lambda: next_event(call), {}))
