"""The messages of a chat, made of the pieces in which other APIs have a conversation."""

from typing import Any

import msgspec

from frontend.api.chat_messages import ChatMessage

BETWEEN_TEXTS = "\n\n"
UNREAD = "[This is no text, and the model reads text only.]"
"""What the model is told in place of a picture or a file that a tool has returned: an agent can go on from it."""


class Turns:
    """Pieces of one role that follow each other are one message, as chat templates expect it; results of tools are
    each their own."""

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []

    def say(self, role: str, text: str) -> None:
        """Adds text of the system (or developer), the user or the assistant."""
        last = self._open("system" if role == "developer" else role)
        self._put(content=_joined(last.text, text))

    def think(self, text: str) -> None:
        """Adds the assistant's reasoning."""
        last = self._open("assistant")
        self._put(reasoning_content=_joined(last.reasoning_content, text))

    def call(self, call_id: str, name: str, arguments: str | dict[str, Any]) -> None:
        """Adds the assistant's call of a tool."""
        last = self._open("assistant")
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._put(tool_calls=[*(last.tool_calls or ()), call])

    def result(self, call_id: str, text: str) -> None:
        """Adds what a tool has returned."""
        self.messages.append(ChatMessage(role="tool", content=text, tool_call_id=call_id))

    def _open(self, role: str) -> ChatMessage:
        if not self.messages or self.messages[-1].role != role:
            self.messages.append(ChatMessage(role=role))
        return self.messages[-1]

    def _put(self, **fields: Any) -> None:
        self.messages[-1] = msgspec.structs.replace(self.messages[-1], **fields)


def _joined(before: str | None, text: str) -> str:
    return f"{before}{BETWEEN_TEXTS}{text}" if before else text
