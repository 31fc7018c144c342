"""Renders chats with the model's chat template, as `transformers` does."""

import logging
from typing import Any, TypeVar

import msgspec
from jinja2 import TemplateError
from jinja2.environment import Template
from jinja2.meta import find_undeclared_variables

from messages.errors import RequestError, bad_request
from messages.ring.requests import THINKING_SWITCHES, ChatPrompt
from runtime.chat_files import DEFAULT, ChatFiles
from tokenizer_proc.image_forms import INDEX, ImagePieces
from tokenizer_proc.message_forms import Message, MessageForms, functions_of, with_empty_fields
from tokenizer_proc.template_sandbox import TemplateSandbox
from tokenizer_proc.thoughts import close_thought

TOOL_USE = "tool_use"
XML_TOOLS = "xml_tools"
"""SmolLM3's name for `tools`."""
END_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""Appended to the message to continue during rendering; the space shows whether the template trims."""

MAX_CHARS = 20_000_000
"""Maximum length of a rendered chat."""

T = TypeVar("T")

log = logging.getLogger("sluice.tokenizer")


class CompiledTemplate:
    """One template, ready to render. Raises `TemplateError` for an invalid template."""

    def __init__(self, sandbox: TemplateSandbox, source: str, files: ChatFiles):
        self._template: Template = sandbox.from_string(source)
        self._special_tokens = files.special_tokens
        self.forms = MessageForms(
            lambda messages, tools: self.render(messages, {"tools": tools}), files.image_marker, files.image_part
        )
        names = find_undeclared_variables(sandbox.parse(source))
        self.has_switch = not names.isdisjoint(THINKING_SWITCHES)
        """The template has a variable that switches reasoning off."""
        self._reads_xml_tools = XML_TOOLS in names and "tools" not in names

    def render(self, messages: list[Message], variables: dict[str, Any]) -> str:
        """Returns the text. Raises `TemplateError` or any other exception of the template."""
        provided = {
            **self._special_tokens,
            "tools": None,
            "documents": None,
            "add_generation_prompt": False,
            **variables,
        }
        if self._reads_xml_tools and isinstance(provided["tools"], list) and provided["tools"]:
            provided = {XML_TOOLS: functions_of(provided["tools"]), **provided}  # pyright: ignore[reportUnknownArgumentType]
        return self._template.render({**provided, "messages": messages})


class ChatTemplates:
    """The chat templates of a model, compiled once. Chats that need an invalid template are rejected.

    `mistake`: the error of the default template, `None` if it is valid.
    """

    def __init__(self, files: ChatFiles):
        self._by_name: dict[str, CompiledTemplate | str] = {}
        self._marker = files.image_marker
        sandbox = TemplateSandbox()
        for name, source in files.templates.items():
            try:
                self._by_name[name] = CompiledTemplate(sandbox, source, files)
            except Exception as error:  # Python's compiler has limits of its own: a SyntaxError, a RecursionError
                self._by_name[name] = _explain(error)
                log.error("the model's chat template %r cannot be used: %s", name, _explain(error))
        default = self._by_name.get(DEFAULT)
        self.mistake = default if isinstance(default, str) else None

    def render(self, chat: ChatPrompt) -> str | ImagePieces:
        """Returns the chat as text, in pieces if it has images (`number_images`).

        Raises `RequestError`, a 400 with the template's own message if it fails.
        """
        if not self._marker or INDEX.encode() not in chat.messages:
            return self._render(chat)[0]
        letter = _find_unused(chat.messages + chat.template_kwargs)
        text, images = self._render(_replaced(chat, self._marker, letter))
        pieces = text.split(self._marker)
        if len(pieces) != len(images) + 1:
            raise _refusal(f"it has {len(pieces) - 1} places for {len(images)} images")
        return ImagePieces(tuple(piece.replace(letter, self._marker) for piece in pieces), tuple(images))

    def _render(self, chat: ChatPrompt) -> tuple[str, list[int]]:
        """Returns the chat as text, and the numbers of its images in their order."""
        messages = _decode(chat.messages, list[dict[str, Any]], "messages", "messages")
        template_kwargs = _decode(chat.template_kwargs, dict[str, Any], "template's variables", "chat_template_kwargs")
        if not messages:
            raise bad_request("The chat is empty: it must have at least one message", "messages")
        template = self._choose(template_kwargs)
        messages = [{name: value for name, value in message.items() if value is not None} for message in messages]
        messages, images = template.forms.adapt_images(messages, template_kwargs.get("tools"))
        final_text = _mark_end(messages) if chat.continue_final_message else None
        template_kwargs["add_generation_prompt"] = chat.add_generation_prompt and not chat.continue_final_message
        try:
            text = _render(template, messages, template_kwargs)
        except MemoryError:
            raise
        except Exception as error:  # a template can raise anything: a TypeError, a KeyError, a RecursionError
            raise _refusal(_explain(error)) from error
        if len(text) > MAX_CHARS:
            raise _refusal(f"it makes a text of more than {MAX_CHARS} characters")
        if final_text is not None:
            text = _cut_at_mark(text, final_text)
        elif chat.thought is not None and chat.thought.is_off and chat.add_generation_prompt:
            text = close_thought(text, chat.thought, has_switch=template.has_switch)
        return text, images

    def _choose(self, template_kwargs: dict[str, Any]) -> CompiledTemplate:
        name = TOOL_USE if template_kwargs.get("tools") is not None and TOOL_USE in self._by_name else DEFAULT
        template = self._by_name.get(name)
        if template is None:
            raise _refusal(f"the model has no default template, only {', '.join(sorted(self._by_name))}")
        if isinstance(template, str):
            raise _refusal(template)
        return template


def _find_unused(data: bytes) -> str:
    """Returns a character of Unicode's private use area that is not in the text."""
    letters = (letter for letter in map(chr, range(0xE000, 0xF900)) if letter.encode() not in data)
    if letter := next(letters, ""):
        return letter
    raise bad_request("The chat has too many characters of the private use area of Unicode", "messages")


def _replaced(chat: ChatPrompt, marker: str, letter: str) -> ChatPrompt:
    """Returns the chat with `letter` for the marker in texts of the client, which stand for no images."""
    old, new = marker.encode(), letter.encode()
    messages, variables = chat.messages.replace(old, new), chat.template_kwargs.replace(old, new)
    return msgspec.structs.replace(chat, messages=messages, template_kwargs=variables)


def _decode(data: bytes, kind: type[T], what: str, param: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"The {what} cannot be read: {error}", param) from None


def _render(template: CompiledTemplate, messages: list[Message], variables: dict[str, Any]) -> str:
    try:
        return template.render(messages, variables)
    except Exception:
        tools = variables.get("tools")
        filled = [with_empty_fields(tool) for tool in tools] if isinstance(tools, list) else None  # pyright: ignore
        if filled == tools:
            raise
    return template.render(messages, variables | {"tools": filled})


def _mark_end(messages: list[dict[str, Any]]) -> str:
    """Appends the mark to the last message's content, or to its last text part. Returns the text before it."""
    message = messages[-1]
    content = message.get("content")
    if isinstance(content, str):
        messages[-1] = message | {"content": content + END_MARK}
        return content
    parts: list[Any] = list(content) if isinstance(content, list) else []  # pyright: ignore[reportUnknownArgumentType]
    for i in reversed(range(len(parts))):
        if isinstance(parts[i], dict) and isinstance(parts[i].get("text"), str):
            text = parts[i]["text"]
            parts[i] = parts[i] | {"text": text + END_MARK}
            messages[-1] = message | {"content": parts}
            return text
    raise bad_request("The last message has no text that could be continued", "messages")


def _cut_at_mark(text: str, final_text: str) -> str:
    mark = END_MARK.strip()
    if mark not in text or final_text.strip() not in text:
        raise bad_request(
            "The last message cannot be continued: the model's chat template leaves it out or changes it", "messages"
        )
    end = text.rindex(mark)
    return text[:end] if text.startswith(END_MARK, end) else text[:end].rstrip()


def _explain(error: BaseException) -> str:
    """Returns the template's own words, or the kind and text of an error that is not Jinja's."""
    if isinstance(error, TemplateError):
        return error.message or type(error).__name__
    return f"{type(error).__name__}: {error}"


def _refusal(reason: str) -> RequestError:
    return bad_request(f"The chat template refused the messages: {reason}", "messages")
