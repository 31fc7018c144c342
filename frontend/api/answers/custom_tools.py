"""Tools whose calls carry text instead of JSON. The model calls them as functions with one string, `input`."""

from typing import Any, Literal

import msgspec

from frontend.api.answers.tools import Name, ToolFunction
from messages.errors import bad_request


class CustomFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The format of a tool's input. The model sees it; it is enforced only for forced calls."""

    type: Literal["text", "grammar"] = "text"
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


def as_function(name: Name, description: str | None, form: CustomFormat, where: str) -> ToolFunction:
    """Returns the function that represents a custom tool. Raises `RequestError` (400)."""
    text = [description] if description else []
    schema: dict[str, Any] = {"type": "string"}
    if form.type == "grammar":
        if form.syntax is None or not form.definition:
            raise bad_request(f"{where} must have a syntax (lark or regex) and a definition", "tools")
        text.append(f"The input must follow this {form.syntax} grammar:\n{form.definition}")
        if form.syntax == "regex":
            schema["pattern"] = f"^(?:{form.definition})$"
    parameters = {"type": "object", "properties": {"input": schema}, "required": ["input"]}
    return ToolFunction(name, "\n\n".join(text) or None, {**parameters, "additionalProperties": False})
