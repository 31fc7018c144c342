"""Chat messages: validation of roles and contents, and conversion to the prompt that the tokenizer renders."""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from frontend.images.parts import ImagePart, bad_image, read_detail
from messages.errors import bad_request, quoted
from messages.ring.requests import ChatPrompt

MAX_ROLE_CHARS = 64
MAX_MESSAGES = 1 << 15

Role = Annotated[str, Meta(min_length=1, max_length=MAX_ROLE_CHARS)]
"""Any name; the chat template decides which roles exist."""

ROLES_WITH_CONTENT = frozenset({"system", "developer", "user", "tool"})
"""Roles whose messages must have a content in OpenAI's API."""

MESSAGES_TEXT = (
    f"a list of messages, not empty and at most {MAX_MESSAGES}, each with a role (a name of 1 to {MAX_ROLE_CHARS} "
    "characters) and a content (a string or a list of parts: text and images)"
)

IMAGE = "image"
"""The type of a part whose place an image takes, as chat templates know it."""


class ImageUrl(msgspec.Struct, frozen=True):
    url: str
    detail: str | None = None


class ContentPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a message: text or an image."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | ImageUrl | None = None
    detail: str | None = None


class ImageContent(ContentPart, frozen=True, kw_only=True):
    """A part of type `IMAGE` that an API has made of its own kinds of images. No client can send one."""

    image: ImagePart


def image_content(image: ImagePart) -> ImageContent:
    return ImageContent(IMAGE, image=image)


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as clients send it. Fields that chat templates do not read are dropped."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    thinking: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None
    """The form of a call before tools; its result has the role "function"."""

    @property
    def text(self) -> str:
        """The texts of the content as one string."""
        return text_of(self.content)


class Chat(NamedTuple):
    """A chat for the tokenizer, and the images of its parts of type `IMAGE`, in order."""

    prompt: ChatPrompt
    images: tuple[ImagePart, ...] = ()


Messages = Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES, description=MESSAGES_TEXT)]


def make_chat_prompt(messages: Sequence[ChatMessage], **options: Any) -> ChatPrompt:
    """Same as `make_chat`, for messages without images. Raises `RequestError` (400) for others."""
    prompt, images = make_chat(messages, **options)
    refuse_images(images)
    return prompt


def refuse_images(images: Sequence[ImagePart]) -> None:
    """Raises `RequestError` (400) if there are any."""
    if images:
        raise bad_image(images[0].param, "images are not supported here", "not_supported")


def make_chat(
    messages: Sequence[ChatMessage],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    template_kwargs: dict[str, Any] | None,
    adapt: Callable[[list["ChatMessage"]], Sequence["ChatMessage"]] | None = None,
) -> Chat:
    """Returns the chat for the tokenizer. The prompt ends with a generation prompt unless it continues a message.

    `adapt` returns the valid messages as the model needs them.

    Raises `RequestError` (400).
    """
    if continue_final_message and add_generation_prompt:
        raise bad_request(
            "continue_final_message and add_generation_prompt cannot both be true", "continue_final_message"
        )
    checked = [_checked(message, f"messages[{index}]") for index, message in enumerate(_with_tool_calls(messages))]
    images: list[ImagePart] = []
    shown = [_without_images(message, images) for message in (checked if adapt is None else adapt(checked))]
    prompt = ChatPrompt(
        messages=msgspec.json.encode(shown),
        add_generation_prompt=not continue_final_message if add_generation_prompt is None else add_generation_prompt,
        continue_final_message=bool(continue_final_message),
        template_kwargs=msgspec.json.encode(template_kwargs or {}),
    )
    return Chat(prompt, tuple(images))


def _without_images(message: ChatMessage, images: list[ImagePart]) -> ChatMessage:
    """Returns the message with only the places of its images, which are appended to `images`."""
    if not isinstance(message.content, list):
        return message
    parts: list[ContentPart] = []
    for part in message.content:
        if isinstance(part, ImageContent):
            images.append(part.image)
            part = ContentPart(IMAGE)
        parts.append(part)
    return msgspec.structs.replace(message, content=parts)


def join_contents(contents: Sequence[str | list[ContentPart] | None], between: str) -> str | list[ContentPart]:
    """Returns contents as one, with a text between any two: a string if they have no images."""
    if not any(isinstance(content, list) and _has_image(content) for content in contents):
        return between.join(text_of(content) for content in contents)
    joined: list[ContentPart] = []
    for content in contents:
        parts = content if isinstance(content, list) else [ContentPart("text", content or "")]
        joined += [ContentPart("text", between), *parts] if joined else parts
    return joined


def _has_image(content: list[ContentPart]) -> bool:
    return any(isinstance(part, ImageContent) for part in content)


def text_of(content: str | list[ContentPart] | None) -> str:
    """Returns the texts of a content as one string."""
    if isinstance(content, list):
        return "\n".join(part.text or "" for part in content)
    return content or ""


def _with_tool_calls(messages: Sequence[ChatMessage]) -> Iterator[ChatMessage]:
    """Yields the messages, calls of functions and their results as those of tools."""
    call_id = ""
    for index, message in enumerate(messages):
        if message.function_call is not None:
            call_id = f"call{index:05}"
            call = {"id": call_id, "type": "function", "function": message.function_call}
            yield msgspec.structs.replace(message, tool_calls=[call], function_call=None)
        elif message.role == "function" and call_id:
            yield msgspec.structs.replace(message, role="tool", tool_call_id=call_id)
        else:
            yield message


def _checked(message: ChatMessage, where: str) -> ChatMessage:
    """Returns the message in the form that templates expect.

    The developer's role becomes system, a refusal becomes text, arguments become objects. Reasoning is passed as
    `reasoning_content` and, for gpt-oss, as `thinking`, which must not be combined with a content.
    """
    content = message.content
    if content is None and message.role in ROLES_WITH_CONTENT:
        raise bad_request(f"{where}.content is required where the role is {message.role}", "messages")
    if isinstance(content, list):
        content = [_checked_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
    if message.role == "tool" and not message.tool_call_id:
        raise bad_request(f"{where}.tool_call_id is required where the role is tool: the id of the call", "messages")
    reasoning = message.reasoning_content or message.reasoning or message.thinking
    return msgspec.structs.replace(
        message,
        role="system" if message.role == "developer" else message.role,
        content="" if content is None else content,
        reasoning=None,
        reasoning_content=reasoning,
        thinking=None if content else reasoning,
        tool_calls=None
        if message.tool_calls is None
        else [_checked_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)],
    )


def _checked_part(part: ContentPart, where: str) -> ContentPart:
    match part:
        case ContentPart(type="text" | "input_text" | "output_text", text=str()):
            return ContentPart("text", part.text)
        case ContentPart(type="refusal", refusal=str()):
            return ContentPart("text", part.refusal)
        case ContentPart(type="text" | "input_text" | "output_text" | "refusal"):
            name = "refusal" if part.type == "refusal" else "text"
            raise bad_request(f"{where}.{name} must be a string, in a part of type {quoted(part.type)}", "messages")
        case ImageContent():
            return part
        case ContentPart(type="image_url" | "input_image", image_url=str() | ImageUrl() as image):
            image = ImageUrl(image, part.detail) if isinstance(image, str) else image
            return image_content(ImagePart(where, image.url, detail=read_detail(image.detail, where)))
        case ContentPart(type="image_url" | "input_image"):
            raise bad_request(
                f"{where}.image_url is required, in a part of type {quoted(part.type)}: a URL, or an object with url",
                "messages",
            )
        case _:
            raise bad_request(
                f"{where}: a part of type {quoted(part.type)} is not supported: text, refusal and image_url are",
                "messages",
                "not_supported",
            )


def _checked_call(call: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns an earlier tool call with its arguments as an object; clients send them as a JSON string.

    Arguments that are not JSON stay as they are: a model may have written them.
    """
    function = call.get("function")
    if not isinstance(function, dict):
        raise bad_request(f"{where}.function must be an object with name and arguments", "messages")
    name: Any = function.get("name")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    arguments: Any = function.get("arguments")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(name, str) or not name:
        raise bad_request(f"{where}.function.name must be a string, not empty", "messages")
    if not isinstance(arguments, str | dict | None):
        raise bad_request(f"{where}.function.arguments must be JSON in a string, or an object", "messages")
    if not isinstance(call.get("id"), str | None):
        raise bad_request(f"{where}.id must be a string", "messages")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments) if arguments.strip() else {}
        except (msgspec.DecodeError, RecursionError):
            return call
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}
