"""Puts the images of a chat where its template writes them.

The frontend writes an image as a part `{"type": "image"}`. Templates read this form, that of `image_url`, or no parts
at all; then the image's text is put in its place. If the template has no place for images in a role, they go into the
next turn of the user.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from messages.ring.requests import ChatPrompt

Message = dict[str, Any]

INDEX = "image_index"
"""A key of each image part while the chat is arranged: its number in the request."""

FORMS: tuple[dict[str, Any], ...] = ({"type": "image"}, {"type": "image_url", "image_url": {"url": ""}})


@dataclass(frozen=True)
class ImagePieces:
    """The text of a prompt around its images: one more text than `images`, which are numbers of the request's."""

    texts: tuple[str, ...]
    images: tuple[int, ...]


class ImageForms:
    """`shows_image` renders a chat with a message of a role that has this content, and finds the marker in its text."""

    def __init__(self, part: str, shows_image: Callable[[str, list[dict[str, Any]]], bool]):
        self._part = {"type": "text", "text": part}
        self._shows_image = shows_image
        self._forms: dict[str, dict[str, Any] | None] = {}

    def place(self, messages: list[Message], *, keeps_system: bool) -> list[Message]:
        """Returns the messages with each image in a message that shows it, in their order.

        `keeps_system`: system messages stay where they are.
        """
        carried: list[Any] = []
        placed: list[Message] = []
        for message in messages:
            content, role = message.get("content"), message["role"]
            images = [part for part in parts_of(content) if INDEX in part]
            form = self._form_of(role) if keeps_system or role != "system" else None
            if images and form is None:
                carried += images
                message = message | {"content": [part for part in parts_of(content) if INDEX not in part] or ""}
            elif role == "user" and carried:
                message = message | {"content": [*carried, *parts_of(content)]}
                carried = []
            placed.append(message)
        if carried:
            placed.append({"role": "user", "content": carried})
        return [self._written(message) for message in placed]

    def _written(self, message: Message) -> Message:
        parts, form = parts_of(message.get("content")), self._form_of(message["role"])
        if form is None or not any(INDEX in part for part in parts):
            return message
        return message | {"content": [form | {INDEX: part[INDEX]} if INDEX in part else part for part in parts]}

    def _form_of(self, role: str) -> dict[str, Any] | None:
        """Returns the form of an image that the template reads in messages of the role, `None` if there is none."""
        if role not in self._forms:
            found = next((form for form in FORMS if self._shows_image(role, [form])), None)
            self._forms[role] = self._part if found is None and role == "user" else found
        return self._forms[role]


def parts_of(content: Any) -> list[dict[str, Any]]:
    """Returns a content as parts: those of a list themselves, where they are parts."""
    if isinstance(content, list):
        return [part if isinstance(part, dict) else {"type": "text", "text": str(part)} for part in content]  # pyright: ignore
    return [{"type": "text", "text": str(content)}] if content else []


def number_images(chat: ChatPrompt) -> ChatPrompt:
    """Returns the chat with the number of each image in its part."""
    messages = msgspec.json.decode(chat.messages, type=list[Message])
    parts = (part for message in messages for part in parts_of(message.get("content")))
    for index, part in enumerate(part for part in parts if part.get("type") == "image"):
        part[INDEX] = index
    return msgspec.structs.replace(chat, messages=msgspec.json.encode(messages))


def take_numbers(messages: list[Message]) -> list[int]:
    """Removes the numbers of images from their parts and returns them in order."""
    return [part.pop(INDEX) for message in messages for part in parts_of(message.get("content")) if INDEX in part]
