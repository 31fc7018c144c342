"""Chat messages, assembled from the smaller pieces in which other APIs express a conversation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from frontend.api.answers.chat_messages import ChatMessage, ContentPart, image_content
from frontend.images.parts import ImagePart

BETWEEN_TEXTS = "\n\n"
UNREAD = "[This is left out: the model cannot read it.]"
"""Replaces a file in a tool's result, and an image there if the model reads text only, so that an agent can continue.
"""

Piece = str | ImagePart


@dataclass
class _Turn:
    """The pieces of a message, joined once at the end because there may be many."""

    role: str
    pieces: list[Piece] = field(default_factory=list[Piece])
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    call_id: str | None = None

    def message(self) -> ChatMessage:
        return ChatMessage(
            role=self.role,
            content=_content(self.pieces),
            reasoning_content=_joined(self.thoughts),
            tool_calls=self.calls or None,
            tool_call_id=self.call_id,
        )


class Turns:
    """Consecutive pieces of one role become one message, as chat templates expect.

    Each tool result is a message of its own. `reads_images`: the model does.
    """

    def __init__(self, *, reads_images: bool = False) -> None:
        self._turns: list[_Turn] = []
        self._reads_images = reads_images

    @property
    def messages(self) -> list[ChatMessage]:
        """The messages of all pieces so far."""
        return [turn.message() for turn in self._turns]

    def show(self, role: str, *pieces: Piece) -> None:
        """Adds texts and images from the system (or developer), the user or the assistant."""
        self._open("system" if role == "developer" else role).pieces += pieces

    def think(self, text: str) -> None:
        """Adds the assistant's reasoning."""
        self._open("assistant").thoughts.append(text)

    def call(self, call_id: str, name: str, arguments: str | dict[str, Any]) -> None:
        """Adds a tool call by the assistant."""
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._open("assistant").calls.append(call)

    def result(self, call_id: str, pieces: Sequence[Piece]) -> None:
        """Adds the result of a tool call."""
        read = [piece if self._reads_images or isinstance(piece, str) else UNREAD for piece in pieces]
        self._turns.append(_Turn("tool", read or [""], call_id=call_id))

    def _open(self, role: str) -> _Turn:
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(_Turn(role))
        return self._turns[-1]


def _content(pieces: Sequence[Piece]) -> str | list[ContentPart] | None:
    """Returns the texts as one string or, if there are images, parts: all of them in order."""
    if not any(isinstance(piece, ImagePart) for piece in pieces):
        return _joined([piece for piece in pieces if isinstance(piece, str)])
    parts: list[ContentPart] = []
    for _, group in groupby(pieces, type):
        alike = list(group)
        parts += [image_content(piece) for piece in alike if isinstance(piece, ImagePart)]
        if text := _joined([piece for piece in alike if isinstance(piece, str)]):
            parts.append(ContentPart("text", text))
    return parts


def _joined(texts: Sequence[str]) -> str | None:
    """Joins the texts, without a separator between empty ones at the beginning; `None` if there are none."""
    first = next((index for index, text in enumerate(texts) if text), len(texts))
    return BETWEEN_TEXTS.join(texts[first:]) if texts else None
