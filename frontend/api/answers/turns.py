"""Chat messages, assembled from the smaller pieces in which other APIs express a conversation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from frontend.api.answers.chat_messages import ChatMessage

BETWEEN_TEXTS = "\n\n"
UNREAD = "[This is no text, and the model reads text only.]"
"""Replaces an image or a file in a tool's result, so that an agent can continue."""


@dataclass
class _Turn:
    """The pieces of a message, joined once at the end because there may be many."""

    role: str
    texts: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    call_id: str | None = None

    def message(self) -> ChatMessage:
        return ChatMessage(
            role=self.role,
            content=_joined(self.texts),
            reasoning_content=_joined(self.thoughts),
            tool_calls=self.calls or None,
            tool_call_id=self.call_id,
        )


class Turns:
    """Consecutive pieces of one role become one message, as chat templates expect.

    Each tool result is a message of its own.
    """

    def __init__(self) -> None:
        self._turns: list[_Turn] = []

    @property
    def messages(self) -> list[ChatMessage]:
        """The messages of all pieces so far."""
        return [turn.message() for turn in self._turns]

    def show(self, role: str, text: str) -> None:
        """Adds text from the system (or developer), the user or the assistant."""
        self._open("system" if role == "developer" else role).texts.append(text)

    def think(self, text: str) -> None:
        """Adds the assistant's reasoning."""
        self._open("assistant").thoughts.append(text)

    def call(self, call_id: str, name: str, arguments: str | dict[str, Any]) -> None:
        """Adds a tool call by the assistant."""
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._open("assistant").calls.append(call)

    def result(self, call_id: str, text: str) -> None:
        """Adds the result of a tool call."""
        self._turns.append(_Turn("tool", [text], call_id=call_id))

    def _open(self, role: str) -> _Turn:
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(_Turn(role))
        return self._turns[-1]


def _joined(texts: Sequence[str]) -> str | None:
    """Joins the texts, without a separator between empty ones at the beginning; `None` if there are none."""
    first = next((index for index, text in enumerate(texts) if text), len(texts))
    return BETWEEN_TEXTS.join(texts[first:]) if texts else None
