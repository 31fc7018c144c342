"""The blocks of a message's content, and their texts and images: also those of documents and search results."""

from collections.abc import Iterator
from typing import Any

import msgspec

from frontend.api.answers.turns import UNREAD, Piece
from frontend.images.parts import ImagePart
from messages.errors import RequestError, bad_request, quoted

NEEDED = {"text": "text", "tool_reference": "tool_name"}
"""The fields with the texts of blocks, by their types."""

IMAGE_SOURCES = {"base64": "data", "url": "url", "file": "file_id"}
"""The fields of the sources of images, by their types."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The source of an image, or of a document: its text as `data`, or its `content`. Other documents are not read."""

    type: str
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
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


def read_block(block: ContentBlock, where: str) -> list[Piece] | None:
    """Returns the texts and images of a block, `None` if it has none that a model could read.

    Raises `RequestError` (400) for an image without a usable source, and for a block within `block` without its text.
    """
    source = block.source
    match block.type:
        case "text":
            return None if block.text is None else [block.text]
        case "tool_reference":
            return None if block.tool_name is None else [block.tool_name]
        case "image":
            return [_read_image(source, where)]
        case "search_result":
            return _joined(block.title, source if isinstance(source, str) else None, block.content, where)
        case "document" if isinstance(source, Source):
            of_source = {"text": source.data, "content": source.content}.get(source.type)
            return None if of_source is None else _joined(block.title, block.context, of_source, where)
        case _:
            return None


def read_content(content: Content, where: str) -> list[Piece]:
    """Returns the texts and images of a content. Raises `RequestError` (400) for other blocks."""
    if isinstance(content, str):
        return [content]
    pieces: list[Piece] = []
    for index, block in enumerate(content):
        read = read_block(block, f"{where}[{index}]")
        if read is None:
            raise unreadable(block, f"{where}[{index}]")
        pieces += read
    return pieces


def read_result(content: Content, where: str) -> list[Piece]:
    """Returns the content of a tool's result. A block that no model reads becomes a sentence.

    Raises `RequestError` (400) for a block of text without a text.
    """
    return [content] if isinstance(content, str) else list(_readable(content, where))


def _readable(blocks: list[ContentBlock], where: str) -> Iterator[Piece]:
    for index, block in enumerate(blocks):
        pieces = read_block(block, f"{where}[{index}]")
        if pieces is None and block.type in NEEDED:
            raise unreadable(block, f"{where}[{index}]")
        yield from [UNREAD] if pieces is None else pieces


def _read_image(source: str | Source | None, where: str) -> ImagePart:
    if not isinstance(source, Source):
        raise bad_request(f"{where}.source is required: an object with a type", where.partition("[")[0])
    field = IMAGE_SOURCES.get(source.type)
    if field is None:
        text = f"{where}.source.type must be {', '.join(IMAGE_SOURCES)}, got {quoted(source.type)}"
        raise bad_request(text, where.partition("[")[0], "not_supported")
    value: str | None = getattr(source, field)
    if not value:
        raise bad_request(f"{where}.source.{field} is required", where.partition("[")[0])
    return ImagePart(where, file_id=value) if field == "file_id" else ImagePart(where, value)


def _joined(title: str | None, about: str | None, content: Content | None, where: str) -> list[Piece]:
    head = "\n".join(text for text in (title, about) if text)
    return [piece for piece in (head, *read_result(content or "", where)) if piece] or [""]


def unreadable(block: ContentBlock, where: str) -> RequestError:
    """Returns the 400 for a block that no model reads, or that lacks its text."""
    name = where.partition("[")[0]
    if block.type in NEEDED:
        return bad_request(f"{where}.{NEEDED[block.type]} is required", name)
    kind = f"{block.type} with a source of type {block.source.type}" if isinstance(block.source, Source) else block.type
    text = f"{where}: a block of type {quoted(kind)} is not supported: text, images and documents of text are"
    return bad_request(text, name, "not_supported")
