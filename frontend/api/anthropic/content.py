"""The blocks of a message's content, and their texts: also those of documents and search results."""

from collections.abc import Iterator
from typing import Any

import msgspec

from frontend.api.answers.turns import BETWEEN_TEXTS, UNREAD
from messages.errors import RequestError, bad_request, quoted

NEEDED = {"text": "text", "tool_reference": "tool_name"}
"""The fields with the texts of blocks, by their types."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a document: its text as `data`, or its `content`. Others (files, URLs) are not read."""

    type: str
    data: str | None = None
    content: "str | list[ContentBlock] | None" = None


class ContentBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A block as clients send it. Fields that chat templates do not read, such as `cache_control`, are dropped."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    title: str | None = None
    context: str | None = None
    source: str | Source | None = None
    content: "str | list[ContentBlock] | None" = None


Content = str | list[ContentBlock]


def text_of(block: ContentBlock, where: str) -> str | None:
    """Returns the text of a block, `None` if it has none that the model could read.

    Raises `RequestError` (400) for a block within it that must have a text and has none.
    """
    source = block.source
    match block.type:
        case "text":
            return block.text
        case "tool_reference":
            return block.tool_name
        case "search_result":
            return _joined(block.title, source if isinstance(source, str) else None, block.content, where)
        case "document" if isinstance(source, Source):
            of_source = {"text": source.data, "content": source.content}.get(source.type)
            return None if of_source is None else _joined(block.title, block.context, of_source, where)
        case _:
            return None


def read_text(content: Content, where: str) -> str:
    """Returns a text, or blocks with texts, as one string. Raises `RequestError` (400) for others."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for index, block in enumerate(content):
        text = text_of(block, f"{where}[{index}]")
        if text is None:
            raise unreadable(block, f"{where}[{index}]")
        texts.append(text)
    return BETWEEN_TEXTS.join(texts)


def read_result(content: Content, where: str) -> str:
    """Returns the content of a tool's result as one string. A block that the model cannot read becomes a sentence.

    Raises `RequestError` (400) for a block of text without a text.
    """
    return content if isinstance(content, str) else BETWEEN_TEXTS.join(_readable(content, where))


def _readable(blocks: list[ContentBlock], where: str) -> Iterator[str]:
    for index, block in enumerate(blocks):
        text = text_of(block, f"{where}[{index}]")
        if text is None and block.type in NEEDED:
            raise unreadable(block, f"{where}[{index}]")
        yield UNREAD if text is None else text


def _joined(title: str | None, about: str | None, content: Content | None, where: str) -> str:
    head = "\n".join(text for text in (title, about) if text)
    return BETWEEN_TEXTS.join(text for text in (head, read_result(content or "", where)) if text)


def unreadable(block: ContentBlock, where: str) -> RequestError:
    """Returns the 400 for a block without a text."""
    name = where.partition("[")[0]
    if block.type in NEEDED:
        return bad_request(f"{where}.{NEEDED[block.type]} is required", name)
    text = f"{where}: a block of type {quoted(block.type)} is not supported, the model reads text only"
    return bad_request(text, name, "not_supported")
