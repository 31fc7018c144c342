"""Numbers in the query string of a request."""

from collections.abc import Mapping

from messages.errors import bad_request, quoted


def read_count(query: Mapping[str, str], name: str, default: int, most: int, *, least: int = 1) -> int:
    """Returns the whole number from `least` to `most` that the query gives as `name`. Raises `RequestError` (400)."""
    value = read_number(query, name, default, most, least=least)
    if not value.is_integer():
        raise bad_request(f"{name} must be a whole number, got {quoted(query[name])}", name)
    return int(value)


def read_number(query: Mapping[str, str], name: str, default: float, most: float, *, least: float = 0.0) -> float:
    """Returns the number from `least` to `most` that the query gives as `name`. Raises `RequestError` (400)."""
    value = parse_number(query.get(name, str(default)))
    if not least <= value <= most:
        raise bad_request(f"{name} must be a number from {least:g} to {most:g}, got {quoted(query[name])}", name)
    return value


def parse_number(text: str) -> float:
    """Returns the number, NaN for text that is none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")
