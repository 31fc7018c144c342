"""Grammars for answers that must be tool calls, in Lark's form: marks around JSON of a schema."""

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from messages.ring.requests import CallGrammar
from tokenizer_proc.marked_text import marks, text_until
from tokenizer_proc.schema_rules import simplify

if TYPE_CHECKING:
    from llguidance import LLTokenizer

OPTIONS = {"lenient": False, "whitespace_pattern": "[ ]?"}
"""At most one space between JSON tokens, as models write calls; more whitespace could be endless."""


def call_grammar(text: str, tokenizer: "LLTokenizer", options: dict[str, Any] | None = None) -> str:
    """Returns the grammar of a `CallGrammar` in llguidance's form. Raises `GrammarError` if it cannot have one.

    `options` replace `OPTIONS` in calls without marks.
    """
    asked = msgspec.json.decode(text, type=CallGrammar)
    numbers = range(len(asked.calls))
    more = f" ({json.dumps(asked.separator)} call)*" if asked.separator else ""
    rules = [f"start: call{more}", "call: " + " | ".join(f"call_{number}" for number in numbers)]
    for number, (begin, schema, end) in zip(numbers, asked.calls, strict=True):
        if schema is None:
            rules.append(f"call_{number}: {marks(begin, tokenizer)} arguments_{number}")
            rules.append(text_until(f"arguments_{number}", end, tokenizer))
            continue
        rules.append(f"call_{number}: {marks(begin, tokenizer)} arguments_{number} {marks(end, tokenizer)}")
        guidance = OPTIONS if begin or options is None else options
        rules.append(f"arguments_{number}: %json {json.dumps(simplify(schema) | {'x-guidance': guidance})}")
    library: Any = import_module("llguidance")
    return library.LLMatcher.grammar_from_lark("\n".join(rules))
