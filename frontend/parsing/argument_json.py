"""Writes parsed arguments as JSON, and checks arguments and names before they are sent."""

import json
import re
from typing import Any

import msgspec

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(")?|[{}\[\],]', re.DOTALL)
"""A string, perhaps without its end, or a character of JSON's structure."""


def write_arguments(values: Any) -> str:
    """Returns JSON. Raises `ValueError` for numbers that JSON does not have."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False)
    return text if is_unicode(text) else json.dumps(values)


def read_arguments(text: str) -> dict[str, Any]:
    """Returns the arguments of a call. Text that is not a JSON object is returned under `invalid_json`."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {"invalid_json": text}


def is_object(text: str) -> bool:
    """True if `text` is a JSON object by the rules of a strict parser."""
    try:
        return isinstance(json.loads(text, parse_int=str, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def close_object(text: str) -> str:
    """Returns the beginning of a JSON object as a whole one; what cannot be completed is left out."""
    whole = text + _ends_of(text)
    if is_object(whole):
        return whole
    certain = max((token.start() for token in TOKEN.finditer(text) if token[0] == ","), default=0)
    return (text[:certain] + _ends_of(text[:certain])) if certain else "{}"


def _ends_of(text: str) -> str:
    """Returns the quote and the brackets that are missing at the end of JSON."""
    ends: list[str] = []
    quote = ""
    for token in TOKEN.finditer(text):
        match token[0]:
            case "{" | "[" as bracket:
                ends.append("}" if bracket == "{" else "]")
            case "}" | "]":
                del ends[-1:]
            case ",":
                pass
            case _:
                quote = "" if token[1] else '"'
    return quote + "".join(reversed(ends))


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def is_unicode(text: str) -> bool:
    """True if `text` can be encoded: an escape may have produced half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
