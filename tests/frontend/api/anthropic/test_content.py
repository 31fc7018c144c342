"""Blocks with texts and images, also in other blocks, reach the model; others become a sentence in results of tools."""

from typing import Any

import msgspec
import pytest

from frontend.api.answers.turns import BETWEEN_TEXTS, UNREAD, Piece
from frontend.api.anthropic.content import Content, read_content, read_result
from frontend.images.parts import ImagePart
from messages.errors import RequestError

TEXT = {"type": "text", "text": "b"}
PICTURE: dict[str, Any] = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
SEARCH: dict[str, Any] = {"type": "search_result", "source": "https://a.example", "title": "T", "content": [TEXT]}
PLAIN: dict[str, Any] = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}


def blocks(*provided: dict[str, Any]) -> Content:
    return msgspec.convert(provided, Content)


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (TEXT, "b"),
        ({**PLAIN, "citations": {"enabled": True}}, "a"),
        ({**PLAIN, "title": "T", "context": "C"}, "T\nC\n\na"),
        ({"type": "document", "source": {"type": "content", "content": "a"}, "title": None}, "a"),
        (SEARCH, "T\nhttps://a.example\n\nb"),
        ({**SEARCH, "content": []}, "T\nhttps://a.example"),
        ({"type": "tool_reference", "tool_name": "get_weather"}, "get_weather"),
    ],
)
def test_texts_of_blocks(block: dict[str, Any], text: str) -> None:
    pieces = read_content(blocks(TEXT, block), "x")
    assert pieces == read_result(blocks(TEXT, block), "x")
    assert BETWEEN_TEXTS.join(piece for piece in pieces if isinstance(piece, str)) == f"b\n\n{text}"


@pytest.mark.parametrize(
    ("block", "pieces"),
    [
        (PICTURE, [ImagePart("x[1]", "aGk=")]),
        (
            {"type": "image", "source": {"type": "url", "url": "https://a.example"}},
            [ImagePart("x[1]", "https://a.example")],
        ),
        ({"type": "image", "source": {"type": "file", "file_id": "file-1"}}, [ImagePart("x[1]", file_id="file-1")]),
        (
            {"type": "document", "source": {"type": "content", "content": [PICTURE, TEXT]}, "title": "T"},
            ["T", ImagePart("x[1][0]", "aGk="), "b"],
        ),
    ],
)
def test_images_of_blocks_keep_their_place(block: dict[str, Any], pieces: list[Piece]) -> None:
    for read in (read_content, read_result):
        assert read(blocks(TEXT, block, TEXT), "x") == ["b", *pieces, "b"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "source is required"),
        ({"type": "base64"}, "source.data is required"),
        ({"type": "url", "url": ""}, "source.url is required"),
        ({"type": "file"}, "source.file_id is required"),
        ({"type": "text", "data": "a"}, "source.type must be base64, url, file, got 'text'"),
    ],
)
def test_an_image_needs_a_source(source: dict[str, Any] | None, words: str) -> None:
    for read in (read_content, read_result):
        with pytest.raises(RequestError) as raised:
            read(blocks({"type": "image", "source": source}), "messages[0].content")
        assert raised.value.info.message.startswith(f"messages[0].content[0].{words}")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}},
        {"type": "document", "source": {"type": "url", "url": "https://a.example/b.pdf"}},
        {"type": "document", "source": {"type": "text"}},
        {"type": "document"},
        {"type": "x_unknown", "content": [TEXT]},
    ],
)
def test_what_no_model_reads_becomes_a_sentence_in_a_result_only(block: dict[str, Any]) -> None:
    assert read_result(blocks(block, TEXT), "x") == [UNREAD, "b"]
    with pytest.raises(RequestError) as raised:
        read_content(blocks(TEXT, block), "messages[0].content")
    assert raised.value.info.message.startswith("messages[0].content[1]: a block of type")


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({"type": "text"}, "x[0].text"),
        ({"type": "tool_reference"}, "x[0].tool_name"),
        ({**SEARCH, "content": [{"type": "text"}]}, "x[0][0].text"),
    ],
)
def test_a_text_that_is_missing_is_refused_everywhere(block: dict[str, Any], field: str) -> None:
    for read in (read_content, read_result):
        with pytest.raises(RequestError) as raised:
            read(blocks(block), "x")
        assert raised.value.info.message == f"{field} is required"
