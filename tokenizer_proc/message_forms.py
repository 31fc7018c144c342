"""Detects which message forms a chat template supports, by rendering small chats when a form is first needed.

A template may accept contents as text or as a list of parts (depending on the role), arguments of calls as an object or
as JSON text, and system messages anywhere, at the beginning only, or not at all.
"""

import json
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, cast

from tokenizer_proc.image_forms import INDEX, ImageForms, Message, parts_of, take_numbers

RenderMessages = Callable[[list[Message], list[Any] | None], str]

NEEDLE = "Qx7vZk"
"""A text that no template contains."""

DUMPED_PART = re.compile(rf"""text['"]: *['"]{NEEDLE}""")
DUMPED_OBJECT = f"{{'{NEEDLE}'"
"""Python's representation of an object, which shows that the template did not expect one."""

PROBED_ROLES = ("system", "user", "assistant", "tool")
"""Messages of other roles are treated like the user's."""

CALL_ID = "call00001"
RESULT: Message = {"role": "tool", "content": "a", "tool_call_id": CALL_ID, "name": "look_up"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks it up",
        "parameters": {"type": "object", "properties": {"what": {"type": "string", "description": "What"}}},
    },
}


class MessageForms:
    """`render` renders messages with tools (`None`: without any) and raises whatever the template raises.

    `image_marker` and `image_part`: those of `ChatFiles`.
    """

    def __init__(self, render: RenderMessages, image_marker: str = "", image_part: str = ""):
        self._render = render
        self._image_marker = image_marker
        self._images = ImageForms(image_part, self._shows_image)
        self._is_read: dict[tuple[str, str], bool] = {}
        """By role and form of a content: "text" or "parts"."""

    def adapt(self, messages: list[Message], tools: Any = None) -> list[Message]:
        """Returns the messages in forms that the template reads, unchanged if it reads none."""
        return self.adapt_images(messages, tools)[0]

    def adapt_images(self, messages: list[Message], tools: Any = None) -> tuple[list[Message], list[int]]:
        """Returns the messages as `adapt` does, and the numbers of their images in the order of the text."""
        arranged = self._separate_calls(self._place_system(self._place_images(messages)))
        images = take_numbers(arranged)
        adapted = [self._adapt(message) for message in arranged]
        if isinstance(tools, list) and tools and self._reads_tools_in_system:
            adapted = _with_tools_in_system(tools, adapted)  # pyright: ignore[reportUnknownArgumentType]
        return adapted, images

    def _place_images(self, messages: list[Message]) -> list[Message]:
        if not any(INDEX in part for message in messages for part in parts_of(message.get("content"))):
            return messages
        return self._images.place(messages, keeps_system=self._place_system(messages) is messages)

    def _shows_image(self, role: str, content: list[dict[str, Any]]) -> bool:
        chat = self._probe(role, [*content, {"type": "text", "text": NEEDLE}])
        return self._shows(chat, lambda text: NEEDLE in text and text.count(self._image_marker) == 1)

    def _adapt(self, message: Message) -> Message:
        role, content = message["role"], message.get("content")
        if isinstance(content, list) and not self._reads(role, "parts"):
            message = message | {"content": text_of(content)}
        elif isinstance(content, str) and not self._reads(role, "text") and self._reads(role, "parts"):
            message = message | {"content": [{"type": "text", "text": content}]}
        if message.get("tool_calls"):
            message = self._call_form.apply(self._with_thinking(message))
        return message

    def _with_thinking(self, message: Message) -> Message:
        """Joins the reasoning and the text before a call if the template shows only one of them."""
        reasoning, text = message.get("reasoning_content"), text_of(message.get("content"))
        if not reasoning or not text or not self._shows_one_thought:
            return message
        return message | {"thinking": f"{reasoning}\n\n{text}", "content": ""}

    def _separate_calls(self, messages: list[Message]) -> list[Message]:
        """Returns the chat with one call a message, each followed by its result, if the template shows only one."""
        if all(len(message.get("tool_calls") or ()) < 2 for message in messages) or not self._shows_one_call:
            return messages
        separated: list[Message] = []
        for message in messages:
            place, call_id = len(separated), message.get("tool_call_id")
            if message["role"] == "tool":
                for index in reversed(range(place)):
                    if any(call.get("id") == call_id for call in separated[index].get("tool_calls") or ()):
                        place = index + 1
                        break
            calls = message.get("tool_calls") or ()
            separated.insert(place, message | {"tool_calls": [calls[0]]} if calls else message)
            separated += [{"role": message["role"], "content": "", "tool_calls": [call]} for call in calls[1:]]
        return separated

    def _place_system(self, messages: list[Message]) -> list[Message]:
        """Returns the messages with the system messages moved to the beginning, or merged, if the template requires it.

        If the template reads none, their text is prepended to the first user message.
        """
        systems = [message for message in messages if message["role"] == "system"]
        others = [message for message in messages if message["role"] != "system"]
        if not systems or not self._reads_any("user"):
            return messages
        text = "\n\n".join(text_of(message.get("content")) for message in systems)
        if not self._reads_any("system"):
            return _with_text_of_user(text, others) or messages
        num_leading = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
        if (num_leading < 2 or self._reads_two) and (num_leading == len(systems) or self._reads_later):
            return messages
        return [*(systems if self._reads_two else [systems[0] | {"content": text}]), *others]

    def _reads(self, role: str, form: str) -> bool:
        role = role if role in PROBED_ROLES else "user"
        if (role, form) not in self._is_read:
            content = NEEDLE if form == "text" else [{"type": "text", "text": NEEDLE}]
            self._is_read[role, form] = self._shows(
                self._probe(role, content), lambda text: NEEDLE in text and not DUMPED_PART.search(text)
            )
        return self._is_read[role, form]

    def _reads_any(self, role: str) -> bool:
        return self._reads(role, "text") or self._reads(role, "parts")

    def _probe(self, role: str, content: Any) -> list[Message]:
        message = {"role": role, "content": content}
        match role:
            case "user":
                return [message]
            case "system":
                return [message, self._user()]
            case "tool":
                return [self._user(), self._call_form.apply(_call("what")), RESULT | message]
            case _:
                return [self._user(), message, self._user()]

    @cached_property
    def _reads_two(self) -> bool:
        """Whether two system messages may begin a chat."""
        return self._reads_systems(lambda first, second: [first, second, self._user()])

    @cached_property
    def _reads_later(self) -> bool:
        """Whether a system message may come later."""
        answer: Message = {"role": "assistant", "content": "a"}
        return self._reads_systems(lambda first, second: [first, self._user(), answer, second, self._user()])

    def _reads_systems(self, chat: Callable[[Message, Message], list[Message]]) -> bool:
        texts = f"{NEEDLE}1", f"{NEEDLE}2"
        first, second = ({"role": "system", "content": text} for text in texts)
        return self._shows(chat(first, second), lambda rendered: all(text in rendered for text in texts))

    @cached_property
    def _reads_tools_in_system(self) -> bool:
        """Whether the template shows tools only as a text in the system message, like that of Phi-4-mini."""
        system = {"role": "system", "content": "a", "tools": NEEDLE}
        chat = [self._user()]
        shows_tools = self._try(chat, [TOOL], lambda text: TOOL["function"]["name"] in text)
        return not shows_tools and self._try([system, *chat], None, lambda text: NEEDLE in text)

    @cached_property
    def _call_form(self) -> "CallForm":
        for form in CALL_FORMS:
            chat = [self._user(), form.apply(_call(NEEDLE)), RESULT]
            if self._shows(chat, lambda text: NEEDLE in text and DUMPED_OBJECT not in text):
                return form
        return CALL_FORMS[0]

    @cached_property
    def _shows_one_call(self) -> bool:
        """Whether a message may have one call, but not two."""

        def shows(*texts: str) -> bool:
            calls = [call for text in texts for call in _call(text)["tool_calls"]]
            message = self._call_form.apply({"role": "assistant", "tool_calls": calls})
            return self._shows([self._user(), message, RESULT], lambda shown: all(text in shown for text in texts))

        return shows(f"{NEEDLE}1") and not shows(f"{NEEDLE}1", f"{NEEDLE}2")

    @cached_property
    def _shows_one_thought(self) -> bool:
        """Whether the field `thinking` is shown before a call, but not with a content."""

        def shows(content: str) -> bool:
            message = self._call_form.apply(_call("what") | {"thinking": NEEDLE, "content": content})
            return self._shows([self._user(), message, RESULT], lambda rendered: NEEDLE in rendered)

        return shows("") and not shows("a")

    def _user(self) -> Message:
        is_text = self._reads("user", "text") or not self._reads("user", "parts")
        return {"role": "user", "content": "a" if is_text else [{"type": "text", "text": "a"}]}

    def _shows(self, chat: list[Message], shows: Callable[[str], bool]) -> bool:
        """True if `shows` accepts the rendered chat, with or without tools."""
        return any(self._try(chat, tools, shows) for tools in (None, [TOOL]))

    def _try(self, chat: list[Message], tools: list[Any] | None, shows: Callable[[str], bool]) -> bool:
        try:
            return shows(self._render(chat, tools))
        except Exception:  # a template can raise anything
            return False


class CallForm(NamedTuple):
    """The form of a message with calls: the type of their arguments, and the content if there is no text."""

    has_json_arguments: bool
    empty_content: str | None

    def apply(self, message: Message) -> Message:
        if not message.get("content"):
            message = message | {"content": self.empty_content}
        if self.has_json_arguments:
            message = message | {"tool_calls": [_with_json_arguments(call) for call in message["tool_calls"]]}
        return message


CALL_FORMS = [CallForm(is_json, content) for is_json in (False, True) for content in ("", None)]


def _with_text_of_user(text: str, messages: list[Message]) -> list[Message] | None:
    """Prepends `text` to the first user message; `None` if there is none."""
    for i, message in enumerate(messages):
        if message["role"] == "user":
            content = message.get("content")
            has_images = any(INDEX in part for part in parts_of(content))
            rest = [{"type": "text", "text": f"{text}\n\n"}, *parts_of(content)] if has_images else None
            begun = message | {"content": rest or f"{text}\n\n{text_of(content)}"}
            return [*messages[:i], begun, *messages[i + 1 :]]
    return None


def _with_tools_in_system(tools: list[Any], messages: list[Message]) -> list[Message]:
    """Adds the tools to the first system message, or to one with the words of Phi-4-mini's documentation."""
    text = json.dumps(functions_of(tools), ensure_ascii=False)
    if messages and messages[0]["role"] == "system":
        return [messages[0] | {"tools": text}, *messages[1:]]
    system = {"role": "system", "content": "You are a helpful assistant with some tools.", "tools": text}
    return [system, *messages]


def functions_of(tools: list[Any]) -> list[Any]:
    """Returns the functions of tools, as templates want them that have no variable `tools`."""
    return [tool.get("function", tool) if isinstance(tool, dict) else tool for tool in tools]  # pyright: ignore


EMPTY_FIELDS: dict[str, Any] = {"description": "", "parameters": {"type": "object", "properties": {}}}


def with_empty_fields(tool: Any) -> Any:
    """Returns the tool with an empty description and without parameters if it has no such fields."""
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):  # pyright: ignore[reportUnknownMemberType]
        return tool  # pyright: ignore[reportUnknownVariableType]
    fields = cast("dict[str, Any]", tool)
    provided = {name: value for name, value in fields["function"].items() if value is not None}
    return {**fields, "function": {**EMPTY_FIELDS, **provided}}


def text_of(content: Any) -> str:
    """Returns a message's content as one text: the texts of parts are joined by newlines."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    parts: list[Any] = content  # pyright: ignore[reportUnknownVariableType]
    return "\n".join(str(part.get("text", "") if isinstance(part, dict) else part) for part in parts)  # pyright: ignore


def _call(argument: str) -> Message:
    function = {"name": "look_up", "arguments": {argument: "a"}}
    return {"role": "assistant", "tool_calls": [{"id": CALL_ID, "type": "function", "function": function}]}


def _with_json_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function: dict[str, Any] = call["function"]
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        return call
    return call | {"function": function | {"arguments": json.dumps(arguments, ensure_ascii=False)}}
