"""Rules in Lark's form for marks around text, and for text up to a mark."""

import json
import re
from typing import TYPE_CHECKING

from tokenizer_proc.structural_tags import is_special

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MARK = re.compile(r"(<[^<>\s]{1,64}>|\[/?[A-Z_]{1,64}\])")
"""Matches texts that may be special tokens."""


def marks(text: str, tokenizer: "LLTokenizer") -> str:
    """Returns a text as terminals: special tokens by their ids, the rest as literal text."""
    return " ".join(_terminals(text, tokenizer))


def text_until(name: str, end: str, tokenizer: "LLTokenizer") -> str:
    """Returns the rule `name`: any text up to and including the first `end`.

    Without an `end`, the text continues to the end of the output.
    """
    text = f"{name}_text"
    first, *others = _terminals(end, tokenizer) or [""]
    if not first or first.startswith("<["):
        return f"{name}: {text}? {' '.join([first, *others])}\n{text}: /(.|\\n)+/"
    return f"{name}: {' '.join([text, *others])}\n{text}[suffix={first}]: /(.|\\n)*/"


def _terminals(text: str, tokenizer: "LLTokenizer") -> list[str]:
    def terminal(part: str) -> str:
        ids = tokenizer.tokenize_str(part, parse_special=True)
        return f"<[{ids[0]}]>" if is_special(part, tokenizer) else json.dumps(part)

    return [terminal(part) for part in MARK.split(text) if part]
