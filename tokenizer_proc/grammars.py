"""Translates and validates grammars: each is compiled once, so that an invalid one is rejected before it is queued."""

import contextlib
import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from messages.config.server import ModelFacts
from messages.errors import bad_request
from messages.ring.requests import CallGrammar, Grammar
from runtime.grammars import GrammarCompiler, GrammarError, shortened
from tokenizer_proc.marked_text import marks, text_until
from tokenizer_proc.schema_faults import DEFINITIONS, explain_calls, find_fault
from tokenizer_proc.schema_rules import BOUNDED_WHITESPACE, DECODER, simplify, simplify_within
from tokenizer_proc.structural_tags import structural_tag_grammar
from tokenizer_proc.tagged_arguments import tagged_rules
from tokenizer_proc.thoughts import join_grammars, limit_of

if TYPE_CHECKING:
    from llguidance import LLTokenizer

OPTIONS = {"lenient": False, "whitespace_pattern": "[ ]?"}
"""At most one space between JSON tokens, as models write calls; more whitespace could be endless."""

ONE_OF_REFUSAL = "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf"
"""llguidance's words, which recommend an option that clients do not have."""

ONE_OF_ADVICE = (
    "a value could match several schemas of this oneOf: use anyOf, or give each schema a required property with a "
    "const of its own"
)


def call_grammar(
    asked: CallGrammar, tokenizer: "LLTokenizer", options: dict[str, Any] | None = None, *, is_closed: bool = True
) -> str:
    """Returns the grammar of calls in llguidance's form. Raises `GrammarError` if it cannot have one.

    `options` replace `OPTIONS` in calls without marks.
    """
    more = "" if asked.separator is None else f" ({json.dumps(asked.separator)} call)*"
    rules = [f"start: call{more}", "call: " + " | ".join(f"call_{number}" for number in range(len(asked.calls)))]
    for number, (begin, schema, end) in enumerate(asked.decoded()):
        if schema is None:
            rules.append(f"call_{number}: {marks(begin, tokenizer)} arguments_{number}")
            rules.append(text_until(f"arguments_{number}", end, tokenizer))
            continue
        rules.append(f"call_{number}: {marks(begin, tokenizer)} arguments_{number} {marks(end, tokenizer)}")
        if asked.tag is not None:
            rules += tagged_rules(f"arguments_{number}", schema, asked.tag, OPTIONS, tokenizer, is_closed=is_closed)
            continue
        guidance = OPTIONS if begin or options is None else options
        simple = simplify(schema, is_closed=is_closed)
        rules.append(f"arguments_{number}: %json {json.dumps(simple | {'x-guidance': guidance})}")
    library: Any = import_module("llguidance")
    return library.LLMatcher.grammar_from_lark("\n".join(rules))


def free_arguments(asked: CallGrammar) -> CallGrammar | None:
    """Returns the calls with any arguments for tools whose schemas cannot be used; `None` if all of them can.

    A model may call such tools, but is not held to their schemas.
    """
    is_freed, calls = False, asked.decoded()
    for _, schema, _ in calls:
        if schema is None:
            continue
        others = {key: value for key, value in schema.items() if key in DEFINITIONS}
        entries: list[dict[str, Any]] = schema.get("anyOf", [schema])
        for entry in entries:
            properties: dict[str, Any] = entry["properties"]
            arguments = next(reversed(properties), "")  # after the name
            if arguments and compile_schema(json.dumps({**others, **properties[arguments]})):
                properties[arguments] = {"type": "object"}
                is_freed = True
    return asked.with_calls(calls) if is_freed else None


class GrammarReader:
    """Translates and compiles grammars for the model in `facts`."""

    def __init__(self, facts: ModelFacts):
        self._compiler = GrammarCompiler(facts.tokenizer_dir, facts.vocab_size, facts.eos_token_ids)

    def load(self) -> None:
        """Loads the model's tokenizer; if that fails, `check` reports why."""
        with contextlib.suppress(GrammarError):
            self._compiler.tokenizer()

    def check(self, grammar: Grammar) -> Grammar:
        """Returns the grammar in llguidance's form. Raises `RequestError` (400) if it cannot be used."""
        try:
            text = self._join(grammar)
            limit = grammar.limit if grammar.thought is None else limit_of(grammar.thought, self._compiler.tokenizer())
            for each in filter(None, (text, limit and limit.text)):
                self._compiler.compile(each)
        except GrammarError as error:
            if grammar.kind != "calls" and grammar.param == "tools" and grammar.calls is not None:
                freed = free_arguments(grammar.calls)
                if freed is not None:
                    return self.check(msgspec.structs.replace(grammar, calls=freed))
            raise bad_request(f"{grammar.param} cannot be used: {_words(grammar, error)}", grammar.param) from None
        return Grammar("llguidance", text, grammar.param, limit=limit)

    def _join(self, grammar: Grammar) -> str:
        """Returns the whole grammar, including a thought before it and calls in its place."""
        if grammar.thought is None and grammar.calls is None:
            return self._translate(grammar)
        if grammar.kind == "thought":
            return ""
        tokenizer = self._compiler.tokenizer()
        answer = None if grammar.kind == "calls" else self._translate(grammar)
        options = None if answer is None else _options_of(answer)
        is_closed = grammar.closes_objects is not False
        calls = grammar.calls and call_grammar(grammar.calls, tokenizer, options, is_closed=is_closed)
        return join_grammars(grammar.thought, calls, answer, tokenizer)

    def _translate(self, grammar: Grammar) -> str:
        library: Any = import_module("llguidance")
        is_closed = grammar.closes_objects is not False
        match grammar.kind:
            case "json_schema":
                return schema_grammar(grammar.text, grammar.whitespace, is_closed=is_closed)
            case "regex":
                return library.LLMatcher.grammar_from_regex(grammar.text)
            case "choice":
                choices = " | ".join(map(json.dumps, json.loads(grammar.text)))
                return library.LLMatcher.grammar_from_lark(f"start: {choices}")
            case "lark":
                return lark_grammar(grammar.text, is_closed=is_closed)
            case "structural_tag":
                return structural_tag_grammar(grammar.text, self._compiler.tokenizer(), is_closed=is_closed)
            case "llguidance" | "thought" | "calls":
                return grammar.text


def _options_of(answer: str) -> dict[str, Any]:
    """Returns the options for JSON that is an alternative to `answer`, a grammar in llguidance's form or in Lark's.

    llguidance fails ("panic: grammar stack empty") if an output may still follow either of two grammars, unless both
    have the same whitespace or only one has any.
    """
    schema = json.loads(answer)["grammars"][0].get("json_schema") if answer.startswith("{") else None
    asked = schema["x-guidance"] if schema else {"whitespace_pattern": BOUNDED_WHITESPACE}
    return {**OPTIONS, **{key: value for key, value in asked.items() if key == "whitespace_pattern"}}


def _words(grammar: Grammar, error: GrammarError) -> str:
    """Returns the error of a grammar, with its place if that is known."""
    words = f"{error}"
    if grammar.kind == "json_schema":
        place = find_fault(grammar.text, compile_schema)
        words = f"{error} (at {place})" if place else words
    elif grammar.kind == "calls" and grammar.calls is not None:
        words = explain_calls(grammar.calls, compile_schema) or words
    return words.replace(ONE_OF_REFUSAL, ONE_OF_ADVICE)


def schema_grammar(schema: str, whitespace: str | None = None, *, is_closed: bool = True) -> str:
    """Returns the grammar of a JSON schema, strict even if the schema's own options request leniency.

    Raises `GrammarError` if it is not JSON.
    """
    library: Any = import_module("llguidance")
    try:
        value = simplify(DECODER.decode(schema), is_closed=is_closed)
        schema = "{}" if value is True else json.dumps(value)  # {} equals true; options need an object
    except (ValueError, RecursionError):
        value = None  # llguidance reports the error
    overrides: dict[str, Any] = {"lenient": False, "coerce_one_of": False}
    if whitespace is not None:
        overrides |= {"whitespace_pattern": whitespace} if whitespace else {"whitespace_flexible": False}
    elif not (isinstance(value, dict) and "x-guidance" in value):
        overrides["whitespace_pattern"] = BOUNDED_WHITESPACE
    try:
        return library.LLMatcher.grammar_from_json_schema(schema, overrides=overrides)
    except ValueError as error:
        raise GrammarError(shortened(str(error))) from None


def compile_schema(schema: str) -> str:
    """Returns the error of a JSON schema, independent of the tokenizer; empty if it is valid."""
    library: Any = import_module("llguidance")
    try:
        return library.LLMatcher.validate_grammar(schema_grammar(schema))
    except GrammarError as error:
        return str(error)


def lark_grammar(text: str, *, is_closed: bool = True) -> str:
    """Returns Lark unchanged and translates GBNF (llama.cpp's EBNF) to it. Raises `GrammarError`."""
    library: Any = import_module("llguidance")
    try:
        return simplify_within(library.grammar_from("grammar", text), is_closed=is_closed)
    except GrammarError:
        raise
    except Exception as error:  # the translator is Python code that may raise anything
        raise GrammarError(shortened(str(error))) from None
