"""The input of a response: text or items, their validation, and their conversion to chat messages."""

import binascii
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from frontend.api.answers.chat_messages import MAX_MESSAGES
from frontend.api.answers.turns import BETWEEN_TEXTS, UNREAD, Piece, Turns
from frontend.api.responses.tools import ToolName
from frontend.images.parts import ImagePart, read_detail
from messages.errors import bad_request, quoted

ITEM_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}
"""The supported types of items, with the prefixes of their ids."""

NEEDED_FIELDS = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": (),
}

ROLES = ("user", "assistant", "system", "developer")
TEXT_TYPES = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
IMAGE = "input_image"
REASONING_KEY = "sluice-reasoning:"
"""The prefix of reasoning that clients keep for us. The text is encoded, not encrypted."""

REFERENCE = "item_reference"
ID_BYTES = 24
RESPONSE_PREFIX = "resp_"
OUTPUT_ID = re.compile(rf"[a-z]{{1,8}}_([0-9a-f]{{{2 * ID_BYTES}}})[0-9]{{4,}}\Z")

INPUT_TEXT = (
    f"a string or a list of up to {MAX_MESSAGES} items, not empty: messages, function_call, function_call_output, "
    "custom_tool_call, custom_tool_call_output, reasoning and item_reference"
)


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An item as clients send it and as it is returned. Without a type it is a message."""

    type: str = ""
    id: str | None = None
    status: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    namespace: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None

    @property
    def kind(self) -> str:
        return self.type or ("message" if self.role is not None else REFERENCE)


Input = Annotated[
    Annotated[str, Meta(min_length=1)] | Annotated[list[Item], Meta(min_length=1, max_length=MAX_MESSAGES)],
    Meta(description=INPUT_TEXT),
]


def read_items(provided: str | list[Item]) -> list[Item]:
    """Returns the items of a body, each with a type and an id. Raises `RequestError` (400)."""
    items = [Item(role="user", content=provided)] if isinstance(provided, str) else provided
    return [_checked(item, f"input[{index}]") for index, item in enumerate(items)]


def _checked(item: Item, where: str) -> Item:
    kind = item.kind
    if kind in TEXT_TYPES or kind in (IMAGE, "input_file"):
        raise bad_request(f"{where}: {kind} is a part of a message, so it belongs in the content of one", "input")
    if kind not in ITEM_PREFIXES:
        raise bad_request(
            f"{where}: an item of type {quoted(kind)} is not supported: {', '.join(ITEM_PREFIXES)} are",
            "input",
            "not_supported",
        )
    if kind == "message" and item.role is not None and item.role not in ROLES:
        hint = "; send a tool's result as an item of type function_call_output" if item.role == "tool" else ""
        text = f"{where}.role must be one of {', '.join(ROLES)}, got {quoted(item.role)}{hint}"
        raise bad_request(text, "input")
    for name in NEEDED_FIELDS[kind]:
        if getattr(item, name) is None:
            raise bad_request(f"{where}.{name} is required in an item of type {kind}", "input")
    for name, parts in (("content", item.content), ("summary", item.summary)):
        _check_parts(parts, f"{where}.{name}", is_message=kind == "message")
    output = [part for part in item.output if _is_readable(part)] if isinstance(item.output, list) else None
    _check_parts(output, f"{where}.output", is_message=True)
    content = item.content
    if kind == "message" and isinstance(content, str):
        content = [Part("output_text" if item.role == "assistant" else "input_text", content)]
    if isinstance(content, list):
        content = [_annotated(part) for part in content]
    item_id = item.id or new_id(ITEM_PREFIXES[kind])
    return msgspec.structs.replace(item, type=kind, id=item_id, content=content, status=item.status or "completed")


def _annotated(part: Part) -> Part:
    """Adds the list of annotations that clients expect in each output text, even if it is empty."""
    if part.type != "output_text" or part.annotations is not None:
        return part
    return msgspec.structs.replace(part, annotations=[])


def _check_parts(parts: str | list[Part] | None, where: str, *, is_message: bool) -> None:
    """Raises `RequestError` (400). Reasoning has texts only."""
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        if part.type in TEXT_TYPES and part.text is None:
            raise bad_request(f"{where}[{index}].text is required", "input")
        if part.type == "refusal" and part.refusal is None:
            raise bad_request(f"{where}[{index}].refusal is required", "input")
        if not _is_readable(part) or (part.type == IMAGE and not is_message):
            raise bad_request(
                f"{where}[{index}]: a part of type {quoted(part.type)} is not supported here: text and, in messages "
                f"and outputs of tools, {IMAGE} are",
                "input",
                "not_supported",
            )
        if part.type == IMAGE:
            read_detail(part.detail, f"{where}[{index}]")
            if not part.image_url and not part.file_id:
                raise bad_request(f"{where}[{index}]: an {IMAGE} needs an image_url (a string) or a file_id", "input")


def _is_readable(part: Part) -> bool:
    return part.type in TEXT_TYPES or part.type in ("refusal", IMAGE)


def make_turns(instructions: str | None, items: Iterable[Item], *, reads_images: bool, num_earlier: int = 0) -> Turns:
    """Returns validated items as the turns of a chat. The first `num_earlier` come from a stored response.

    Raises `RequestError` (400).
    """
    turns = Turns(reads_images=reads_images)
    if instructions:
        turns.show("system", instructions)
    for index, item in enumerate(items, -num_earlier):
        where = f"input[{index}]" if index >= 0 else "previous_response_id"
        match item.type:
            case "message":
                assert item.role is not None
                turns.show(item.role, *_pieces(item.content, f"{where}.content"))
            case "function_call":
                turns.call(item.call_id or "", _model_name(item), item.arguments or "")
            case "custom_tool_call":
                turns.call(item.call_id or "", _model_name(item), {"input": item.input})
            case "function_call_output" | "custom_tool_call_output":
                turns.result(item.call_id or "", _pieces(item.output, f"{where}.output"))
            case _:
                reasoning = _text_of(item.content) or unpack_reasoning(item.encrypted_content or "")
                if reasoning:
                    turns.think(reasoning)
    return turns


def _model_name(item: Item) -> str:
    return ToolName(item.name or "", item.namespace).of_model


def _pieces(content: str | list[Part] | None, where: str) -> list[Piece]:
    if not isinstance(content, list):
        return [content or ""]
    return [_piece(part, f"{where}[{index}]") for index, part in enumerate(content)]


def _piece(part: Part, where: str) -> Piece:
    if part.type == IMAGE:
        file_id = "" if part.image_url else part.file_id or ""
        return ImagePart(where, part.image_url or "", file_id, read_detail(part.detail, where))
    return (part.text or part.refusal or "") if _is_readable(part) else UNREAD


def _text_of(content: str | list[Part] | None) -> str:
    if isinstance(content, list):
        return BETWEEN_TEXTS.join(part.text or part.refusal or "" for part in content)
    return content or ""


def pack_reasoning(text: str) -> str:
    """Returns the text as `encrypted_content`, which `unpack_reasoning` reverses."""
    return b64encode((REASONING_KEY + text).encode()).decode()


def unpack_reasoning(packed: str) -> str:
    """Returns the text of `encrypted_content`. Raises `RequestError` (400) if another server made it."""
    if not packed:
        return ""
    try:
        text = b64decode(packed, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        text = ""
    if not text.startswith(REASONING_KEY):
        raise bad_request(
            "input has a reasoning item whose encrypted_content does not come from this server: leave it out",
            "input",
            "invalid_encrypted_content",
        )
    return text.removeprefix(REASONING_KEY)


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(ID_BYTES)}"


def output_id(prefix: str, response_id: str, index: int) -> str:
    """Returns the id of an item of a response's output; `response_of` finds the response in it."""
    return f"{prefix}_{response_id.removeprefix(RESPONSE_PREFIX)}{index:04d}"


def response_of(item_id: str) -> str | None:
    """Returns the id of the response whose output contains this item, `None` if the id names no response."""
    found = OUTPUT_ID.match(item_id)
    return found and RESPONSE_PREFIX + found[1]
