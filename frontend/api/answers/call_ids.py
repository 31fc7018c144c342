"""The ids of calls in the form that a model's chat template wants, whichever server or client made them."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from frontend.api.answers.chat_messages import ChatMessage
from frontend.parsing.marked_format import IdForm

NUMBERED = re.compile(r"functions\.[\w.-]{1,128}:(\d{1,9})\Z")

SHORT = re.compile(r"[A-Za-z0-9]{9}\Z")


def next_number(messages: Sequence[ChatMessage]) -> int:
    """Returns the number of the next call in a conversation: all are numbered in order, from 0."""
    ids = [str(call.get("id") or "") for message in messages for call in message.tool_calls or ()]
    numbers = [int(found[1]) + 1 for each in ids if (found := NUMBERED.match(each))]
    return max([len(ids), *numbers])


def fit_ids(messages: Sequence[ChatMessage], form: IdForm) -> list[ChatMessage]:
    """Returns the messages with ids of calls, and of their results, in this form."""
    fitted: dict[str, str] = {}
    made: list[ChatMessage] = []
    number = 0
    for message in messages:
        calls: list[dict[str, Any]] = []
        for call in message.tool_calls or ():
            provided = str(call.get("id") or "")
            fitted[provided] = _fit(provided, call["function"]["name"], number, form)
            calls.append({**call, "id": fitted[provided]})
            number += 1
        result_id = message.tool_call_id
        made.append(
            msgspec.structs.replace(
                message,
                tool_calls=calls or message.tool_calls,
                tool_call_id=None if result_id is None else fitted.get(result_id, result_id),
            )
        )
    return made


def _fit(provided: str, name: str, number: int, form: IdForm) -> str:
    if form == "numbered":
        return provided if NUMBERED.match(provided) else f"functions.{name}:{number}"
    return provided if SHORT.match(provided) else hashlib.blake2s(provided.encode(), digest_size=8).hexdigest()[:9]
