"""Writes parsed arguments as JSON, and checks arguments and names before they are sent."""

import json
from typing import Any


def write_arguments(values: Any) -> str:
    """Returns JSON. Raises `ValueError` for numbers that JSON does not have."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False)
    return text if is_unicode(text) else json.dumps(values)


def is_object(text: str) -> bool:
    """True if `text` is a JSON object by the rules of a strict parser."""
    try:
        return isinstance(json.loads(text, parse_int=str, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def is_unicode(text: str) -> bool:
    """True if `text` can be encoded: an escape may have produced half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
