"""The input of a decision as one text: what OpenAI's API allows, without images."""

from typing import Any

import msgspec

from frontend.api.responses import items
from messages.errors import bad_request, quoted

JSON_PART = "input_json"
TEXT_PARTS = ("input_text", "output_text", "text")
INSTRUCTING = ("system", "developer")
ROLES = ("user", "assistant", *INSTRUCTING)

NEEDED_FIELDS = {kind: needed for kind, needed in items.NEEDED_FIELDS.items() if kind != "reasoning"}


class Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    data: dict[str, Any] | list[dict[str, Any]] | None = None


Content = str | list[Part]


class Item(msgspec.Struct, frozen=True):
    """A message or, with a `type`, a call of a tool or its output."""

    type: str = "message"
    role: str | None = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: Content | None = None


class DecisionInput(msgspec.Struct, frozen=True):
    """`instructions`: the text of the system and developer messages at the beginning."""

    instructions: str
    text: str


def read_input(provided: str | list[Item]) -> DecisionInput:
    """Returns the text of the whole input. Raises `RequestError` (400).

    A single user message is its text. Otherwise each item begins with a line that states what it is.
    """
    if isinstance(provided, str):
        return DecisionInput("", provided)
    called: dict[str | None, str] = {}
    for index, item in enumerate(provided):
        _check(item, f"input[{index}]", called)
    num_first = next((i for i, item in enumerate(provided) if item.role not in INSTRUCTING), len(provided))
    instructions = [text_of(item.content or "", f"input[{i}].content") for i, item in enumerate(provided[:num_first])]
    rest = provided[num_first:]
    if not rest:
        raise bad_request("input has instructions only: it needs a user message", "input")
    if len(rest) == 1 and rest[0].role == "user":
        text = text_of(rest[0].content or "", f"input[{num_first}].content")
    else:
        text = "\n\n".join(_shown(item, f"input[{i}]", called) for i, item in enumerate(rest, num_first))
    return DecisionInput("\n\n".join(instructions), text)


def text_of(content: Content, where: str) -> str:
    """Returns the text of a content, JSON in its compact form. Raises `RequestError` (400) for images."""
    if isinstance(content, str):
        return content
    return "\n".join(_text_of_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _text_of_part(part: Part, where: str) -> str:
    if part.type in TEXT_PARTS and part.text is not None:
        return part.text
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type == JSON_PART and part.data is not None:
        return msgspec.json.encode(part.data).decode()
    known = part.type in (*TEXT_PARTS, "refusal", JSON_PART)
    reason = "lacks its content" if known else "is not supported, the model reads text only"
    raise bad_request(
        f"{where}: a part of type {quoted(part.type)} {reason}",
        where.partition(".")[0].partition("[")[0],
        "not_supported",
    )


def _check(item: Item, where: str, called: dict[str | None, str]) -> None:
    """Notes the name of a call by its id in `called`, and checks that an output belongs to one."""
    if item.type not in NEEDED_FIELDS:
        names = ", ".join(NEEDED_FIELDS)
        raise bad_request(f"{where}: an item of type {quoted(item.type)} is not supported: {names} are", "input")
    for name in NEEDED_FIELDS[item.type]:
        if getattr(item, name) is None:
            raise bad_request(f"{where}.{name} is required in an item of type {item.type}", "input")
    if item.type == "message" and item.role not in ROLES:
        raise bad_request(f"{where}.role must be one of {', '.join(ROLES)}, got {quoted(item.role)}", "input")
    if item.name is not None and item.call_id is not None:
        called[item.call_id] = item.name
    elif item.type.endswith("_output") and item.call_id not in called:
        raise bad_request(f"{where}.call_id is that of no call before it", "input")


def _shown(item: Item, where: str, called: dict[str | None, str]) -> str:
    match item.type:
        case "message":
            return f"[{item.role}]\n{text_of(item.content or '', f'{where}.content')}"
        case "function_call" | "custom_tool_call":
            return f"[call of {item.name}]\n{item.arguments or item.input or ''}"
        case _:
            return f"[result of {called[item.call_id]}]\n{text_of(item.output or '', f'{where}.output')}"
