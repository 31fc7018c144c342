"""The regular expressions of a script, as Python writes them."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.patterns import Mode

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<template>`)"""
    r"""|(?P<pattern>/(?![*/])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/(?P<flags>[dgimsuvy]*))"""
    r"""|(?P<word>[\w$]+)|(?P<mark>\S)""",
    re.DOTALL,
)
KEYWORDS = {"return", "typeof", "case", "in", "of", "delete", "void", "throw", "else", "do"}


class JsPattern(NamedTuple):
    line: int
    pattern: str
    flags: int
    mode: Mode


def read_js_patterns(script: str) -> Iterator[JsPattern]:
    """Yields the literals; a slash behind a value is a division. `new RegExp` must not be used but with a constant."""
    assert not re.search(r"new RegExp\((?![\"'])", script), "a pattern that is made while the script runs"
    position, before = 0, ""
    while (found := TOKEN.search(script, position)) is not None:
        position = found.end()
        if found["comment"] or found["template"]:
            continue  # what a template has in ${…} is read like the rest
        if found["pattern"] and (
            before in KEYWORDS or not before or (before[-1] not in ")]}'\"" and not before[-1].isalnum())
        ):
            yield translate(found["pattern"], found["flags"], script.count("\n", 0, found.start()) + 1)
            before = ")"
        elif found["pattern"]:
            position, before = found.start() + 1, "/"
        else:
            before = found[0]


def translate(literal: str, flags: str, line: int) -> JsPattern:
    text = literal[1 : literal.rindex("/")].replace("\\/", "/").replace("[^]", r"[\s\S]").replace("(?<", "(?P<")
    text = (
        text.replace("(?P<=", "(?<=")
        .replace("(?P<!", "(?<!")
        .replace("\\k<", "(?P=")
        .replace("$", r"\Z" if "m" not in flags else "$")
    )
    text = re.sub(r"\\u\{([0-9a-fA-F]+)\}", lambda match: re.escape(chr(int(match[1], 16))), text)
    text = re.sub(r"\\p\{[^}]*\}", r"\\w", text)
    kept = (
        (re.IGNORECASE if "i" in flags else 0)
        | (re.MULTILINE if "m" in flags else 0)
        | (re.DOTALL if "s" in flags else 0)
    )
    return JsPattern(line, text, int(kept), "match" if "y" in flags else "search")
