"""`functions` and `function_call`: what OpenAI's API had before `tools`. They are tools of which one may be called."""

from typing import Any

import msgspec

from frontend.api.answers.tools import Choice, ChosenFunction, NamedChoice, ToolFunction, ToolUse, list_tools
from messages.errors import bad_request

FUNCTIONS_TEXT = "a list of functions, each with a name, which may have a description and parameters (an object)"
CHOICE_TEXT = '"none", "auto" or {"name": …}'


def read_functions(functions: list[Any]) -> ToolUse:
    """Returns the functions as tools. Raises `RequestError` (400)."""
    try:
        return list_tools(msgspec.convert(functions, list[ToolFunction]))
    except msgspec.ValidationError as error:
        raise bad_request(f"functions must be {FUNCTIONS_TEXT}: {error}", "functions") from None


def read_function_choice(choice: str | dict[str, Any] | None, *, has_functions: bool) -> Choice:
    """Returns the choice of a `function_call`. Raises `RequestError` (400)."""
    if choice in (None, "none", "auto"):
        return "none" if choice == "none" else "auto"
    if not has_functions:
        raise bad_request('function_call must be "none" or "auto": there are no functions', "function_call")
    try:
        return NamedChoice(msgspec.convert(choice, ChosenFunction).name)
    except msgspec.ValidationError as error:
        raise bad_request(f"function_call must be {CHOICE_TEXT}: {error}", "function_call") from None
