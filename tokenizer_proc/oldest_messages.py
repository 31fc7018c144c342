"""Shortens a chat that does not fit the context, as Ollama does: its oldest messages are left out."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from messages.ring.requests import ChatPrompt

OF_TURNS = ("user", "assistant", "tool")

T = TypeVar("T")


def drop_oldest(chat: ChatPrompt, render: Callable[[ChatPrompt], T], fits: Callable[[T], bool]) -> T | None:
    """Returns the text of the chat with as many turns as `fits` accepts, at least the newest; `None` if it has one.

    A turn begins with a message of the user, so that no result is left without its call; messages outside of turns,
    such as the system's, stay. The number of renderings is logarithmic, each of at most about twice the turns that fit.
    """
    messages = msgspec.json.decode(chat.messages, type=list[dict[str, Any]])
    starts = [index for index, message in enumerate(messages) if message["role"] == "user"]

    def text_of(num_turns: int) -> T:
        first = starts[-num_turns]
        kept = [message for i, message in enumerate(messages) if i >= first or message["role"] not in OF_TURNS]
        return render(msgspec.structs.replace(chat, messages=msgspec.json.encode(kept)))

    if len(starts) < 2:
        return None
    num_good, num_bad, good = 1, len(starts), text_of(1)
    step = 1
    while num_good + 1 < num_bad:
        middle = min(num_good + step, (num_good + num_bad + 1) // 2)
        text = text_of(middle)
        if fits(text):
            num_good, good, step = middle, text, step * 2
        else:
            num_bad, step = middle, max(1, step // 2)
    return good
