"""Calls of tools that an answer must be, as a grammar in Lark's form: marks around JSON of a schema."""

import json
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from messages.requests import CallGrammar
from tokenizer_proc.schema_rules import simplify
from tokenizer_proc.structural_tags import is_special

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MARK = re.compile(r"(<[^<>\s]{1,64}>|\[[A-Z_]{1,64}\])")
"""What may be a special token."""

OPTIONS = {"lenient": False, "whitespace_pattern": "[ ]?"}
"""At most a blank between the tokens of JSON, as models write calls: white space could go on for ever."""


def call_grammar(text: str, tokenizer: "LLTokenizer") -> str:
    """Returns the grammar of a `CallGrammar` in llguidance's form. Raises `GrammarError` where it can have none."""
    asked = msgspec.json.decode(text, type=CallGrammar)
    numbers = range(len(asked.calls))
    more = f" ({json.dumps(asked.separator)} call)*" if asked.separator else ""
    rules = [f"start: call{more}", "call: " + " | ".join(f"call_{number}" for number in numbers)]
    for number, (begin, schema, end) in zip(numbers, asked.calls, strict=True):
        rules.append(f"call_{number}: {_marks(begin, tokenizer)} arguments_{number} {_marks(end, tokenizer)}")
        rules.append(f"arguments_{number}: %json {json.dumps(simplify(schema) | {'x-guidance': OPTIONS})}")
    library: Any = import_module("llguidance")
    return library.LLMatcher.grammar_from_lark("\n".join(rules))


def _marks(text: str, tokenizer: "LLTokenizer") -> str:
    """Returns a text as terminals: special tokens by their ids, the rest as it is spelt."""
    terminals: list[str] = []
    for part in filter(None, MARK.split(text)):
        if is_special(part, tokenizer):
            terminals.append(f"<[{tokenizer.tokenize_str(part, parse_special=True)[0]}]>")
        else:
            terminals.append(json.dumps(part))
    return " ".join(terminals)
