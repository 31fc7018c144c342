"""Structural tags: free text in which certain beginnings start JSON of a schema, like tool calls."""

import json
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from runtime.grammars import GrammarError
from tokenizer_proc.schema_rules import BOUNDED_WHITESPACE, simplify

if TYPE_CHECKING:
    from llguidance import LLTokenizer

OPTIONS = {"lenient": False, "whitespace_pattern": BOUNDED_WHITESPACE}


class Structure(msgspec.Struct, frozen=True):
    """Between `begin` and `end`, the text is JSON of this schema."""

    begin: Annotated[str, Meta(min_length=1)]
    end: str
    schema: dict[str, Any]


class StructuralTag(msgspec.Struct, frozen=True):
    """After one of the `triggers`, a structure that begins with this trigger must follow."""

    structures: Annotated[list[Structure], Meta(min_length=1)]
    triggers: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]


def structural_tag_grammar(text: str, tokenizer: "LLTokenizer", *, is_closed: bool = True) -> str:
    """Returns the grammar in llguidance's form. Raises `GrammarError`."""
    try:
        tag = msgspec.json.decode(text, type=StructuralTag)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GrammarError(
            f"{error}: it has a list of structures (begin, schema, end) and a list of triggers"
        ) from None
    library: Any = import_module("llguidance")
    are_special = [is_special(trigger, tokenizer) for trigger in tag.triggers]
    if any(are_special) and not all(are_special):
        raise GrammarError("either all or none of its triggers may be special tokens")
    tags = [
        library.StructTag(
            trigger=_trigger_of(structure, tag.triggers),
            begin=structure.begin,
            grammar=simplify(structure.schema, is_closed=is_closed) | {"x-guidance": OPTIONS},
            end=structure.end,
        )
        for structure in tag.structures
    ]
    return library.LLMatcher.grammar_from_lark(library.StructTag.to_grammar(tags, assume_special=all(are_special)))


def _trigger_of(structure: Structure, triggers: list[str]) -> str:
    for trigger in triggers:
        if structure.begin.startswith(trigger):
            return trigger
    raise GrammarError(f"no trigger begins the structure {json.dumps(structure.begin[:60])}")


def is_special(text: str, tokenizer: "LLTokenizer") -> bool:
    """True if a text is a single special token."""
    ids = tokenizer.tokenize_str(text, parse_special=True)
    return len(ids) == 1 and tokenizer.is_special_token(ids[0])
