"""Which metrics and labels a PromQL query names."""

import re
from typing import NamedTuple

TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[[^\]]*\]|\d[\w.]*|[A-Za-z_$:][\w:$]*|[=!]~|!=|\S')
"""A string, a range, a number or duration, a name, an operator; durations and ranges name nothing."""

NAME = re.compile(r"[A-Za-z_:][\w:]*\Z")
LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
KEYWORDS = {"and", "or", "unless", "bool", "offset", "atan2"} | LISTS
CLOSING = {"{": "}", "(": ")"}


class Matcher(NamedTuple):
    """`value` may be a regular expression."""

    label: str
    operator: str
    value: str


class Names(NamedTuple):
    selectors: list[tuple[str, list[Matcher]]]
    """Each metric with the matchers behind it."""
    grouped: list[str]
    """Labels in `by (…)` and the like."""


def names_of(query: str) -> Names:
    tokens = [*TOKEN.findall(query), ""]
    selectors: list[tuple[str, list[Matcher]]] = []
    grouped: list[str] = []
    place = 0
    while tokens[place]:
        token, following = tokens[place], tokens[place + 1]
        place += 1
        if token in LISTS and following == "(":
            inside = _inside(tokens, place)
            grouped += [name for name in inside if name != ","]
            place += len(inside) + 2
        elif NAME.match(token) and token not in KEYWORDS and following not in ("(", "by", "without"):
            inside = _inside(tokens, place) if following == "{" else []
            place += len(inside) + 2 if following == "{" else 0
            selectors.append((token, [Matcher(*inside[at : at + 3]) for at in range(0, len(inside), 4)]))
    return Names(selectors, grouped)


def _inside(tokens: list[str], place: int) -> list[str]:
    end = tokens.index(CLOSING[tokens[place]], place)
    return tokens[place + 1 : end]
