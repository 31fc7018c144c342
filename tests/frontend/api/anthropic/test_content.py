"""Blocks that are texts, though of other types, reach the model; the others become a sentence in results of tools."""

from typing import Any

import msgspec
import pytest

from frontend.api.answers.turns import UNREAD
from frontend.api.anthropic.content import Content, read_result, read_text
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
        ({"type": "document", "source": {"type": "content", "content": [TEXT, PICTURE]}}, f"b\n\n{UNREAD}"),
        (SEARCH, "T\nhttps://a.example\n\nb"),
        ({**SEARCH, "content": []}, "T\nhttps://a.example"),
        ({"type": "tool_reference", "tool_name": "get_weather"}, "get_weather"),
    ],
)
def test_texts_of_blocks(block: dict[str, Any], text: str) -> None:
    assert read_text(blocks(TEXT, block), "x") == read_result(blocks(TEXT, block), "x") == f"b\n\n{text}"


@pytest.mark.parametrize(
    "block",
    [
        PICTURE,
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}},
        {"type": "document", "source": {"type": "url", "url": "https://a.example/b.pdf"}},
        {"type": "document", "source": {"type": "text"}},
        {"type": "document"},
        {"type": "x_unknown", "content": [TEXT]},
    ],
)
def test_what_is_no_text_becomes_a_sentence_in_a_result_only(block: dict[str, Any]) -> None:
    assert read_result(blocks(block, TEXT), "x") == f"{UNREAD}\n\nb"
    with pytest.raises(RequestError) as raised:
        read_text(blocks(TEXT, block), "messages[0].content")
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
    for read in (read_text, read_result):
        with pytest.raises(RequestError) as raised:
            read(blocks(block), "x")
        assert raised.value.info.message == f"{field} is required"
