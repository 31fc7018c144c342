"""Compiles grammars with `llguidance` for the model's tokenizer, in the tokenizer and scheduler processes.

Nothing is imported or loaded before the first grammar: the tokenizer takes up to a second and 100 MB.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from messages.errors import ErrorInfo, SluiceError
from runtime.special_tokens import TOKENIZER_JSON
from runtime.tokenizer_files import read_tokenizer_json, return_freed_memory

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NUM_KEPT = 64
"""Compiled grammars that are cached for later requests."""

MAX_USES = 1_000
"""Maximum uses of a cached grammar: all its matchers share the lexer's states, which keep growing."""

MAX_WORDS_CHARS = 240

LIMITS = {
    "max_grammar_size": 200_000,
    "max_lexer_states": 50_000,
    "max_items_in_row": 1_000,
    "step_max_items": 10_000,
    "step_lexer_fuel": 100_000,
    "verbose_errors": False,
}
"""Parameters of `LLParserLimits`. With the defaults a bitmask can take more than a second."""


class GrammarError(SluiceError):
    """A grammar cannot be used. The message may be llguidance's."""


class _Whole(msgspec.Struct, frozen=True):
    """A grammar in the form that llguidance produces for schemas and regular expressions; numbers stay as written."""

    grammars: list[dict[str, Raw]]


@dataclass
class _Compiled:
    matcher: "LLMatcher"
    num_uses: int = 0


class GrammarCompiler:
    """Compiles grammars in llguidance's form. Its methods are thread-safe.

    `vocab_size` is the model's. The tokens `eos_token_ids` are only allowed where the output may end.
    """

    def __init__(self, directory: str, vocab_size: int, eos_token_ids: Collection[int]):
        self._directory = directory
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._lock = threading.Lock()
        self._load_lock = threading.Lock()
        """Separate, so that looking up a compiled grammar never waits for the tokenizer."""
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[str, _Compiled] = OrderedDict()

    def find(self, text: str) -> "LLMatcher | None":
        """Returns a matcher of the grammar if it is cached, within microseconds.

        A panic in llguidance invalidates all copies of a matcher, so such a grammar is removed from the cache.
        """
        with self._lock:
            known = self._compiled.get(text)
            if known is None:
                return None
            self._compiled.move_to_end(text)
            known.num_uses += 1
            matcher = known.matcher.deep_copy()
            matcher.validate_tokens([0])  # only to detect an error
            if known.num_uses == MAX_USES or matcher.get_error():
                del self._compiled[text]
            return None if matcher.get_error() else matcher

    def compile(self, text: str) -> "LLMatcher":
        """Returns a matcher in its initial state. Raises `GrammarError` if no output can satisfy the grammar."""
        known = self.find(text)
        if known is not None:
            return known
        tokenizer = self.tokenizer()
        library: Any = import_module("llguidance")
        limits = library.LLParserLimits(**LIMITS)
        matcher: LLMatcher = library.LLMatcher(tokenizer, _without_forcing(text), log_level=0, limits=limits)
        self._check_beginning(matcher, text)
        with self._lock:
            self._compiled[text] = _Compiled(matcher)
            if len(self._compiled) > NUM_KEPT:
                self._compiled.popitem(last=False)
            return matcher.deep_copy()

    def _check_beginning(self, matcher: "LLMatcher", text: str) -> None:
        """Raises `GrammarError` if no output can begin. Computing the first bitmask here speeds up the next one."""
        if matcher.is_error():
            raise GrammarError(shortened(matcher.get_error()))
        matcher.compute_bitmask()
        words = matcher.get_error()
        if words.startswith("NoExtension"):
            library: Any = import_module("llguidance")
            of_bytes = library.LLMatcher(library.LLTokenizer("byte"), _without_forcing(text), log_level=0)
            of_bytes.compute_bitmask()
            if of_bytes.get_error().startswith("NoExtension"):
                raise GrammarError("nothing satisfies the grammar: it never ends")
            raise GrammarError("the model's vocabulary cannot write the beginning that the grammar requires")
        if words:
            raise GrammarError(shortened(words))
        if matcher.is_stopped():
            raise GrammarError("nothing but an empty output satisfies the grammar")

    def tokenizer(self) -> "LLTokenizer":
        """Returns the model's tokenizer, loaded at the first call. Raises `GrammarError` if that fails."""
        with self._load_lock:
            if self._tokenizer is None:
                self._tokenizer = self._load()
                return_freed_memory()
            return self._tokenizer

    def _load(self) -> "LLTokenizer":
        try:
            text, library = read_tokenizer_json(self._directory), import_module("llguidance")
            slices, eos_token = library.LLTokenizer.json_slices(), self._eos_token_ids or None
            with contextlib.suppress(ValueError):  # a tokenizer may have more tokens than the model
                return library.LLTokenizer(text, n_vocab=self._vocab_size, eos_token=eos_token, slices=slices)
            return library.LLTokenizer(text, eos_token=eos_token, slices=slices)
        except MemoryError:
            raise
        except Exception as error:
            reason = f"{TOKENIZER_JSON} is missing" if isinstance(error, FileNotFoundError) else str(error)
            raise GrammarError(f"this model's tokenizer cannot be used with a grammar: {shortened(reason)}") from error


def _without_forcing(text: str) -> str:
    """Wraps the grammar in one that limits llguidance's lookahead to one token.

    By default, each bitmask starts from all the text that must come next. A few lines of grammar can make that
    megabytes of text, which takes many seconds and gigabytes of memory.
    """
    try:
        first, *others = msgspec.json.decode(text, type=_Whole).grammars if text.startswith("{") else [{}]
    except (msgspec.DecodeError, ValueError, RecursionError):
        return text  # llguidance reports the error
    lark = {} if first else {"lark_grammar": text}
    inner = {**first, **lark, "name": "whole"}
    outer = {"lark_grammar": '%llguidance {"no_forcing": true}\nstart: @whole'}
    return msgspec.json.encode({"grammars": [outer, inner, *others]}).decode()


def grammars_are_busy(timeout_s: float, param: str | None = None) -> ErrorInfo:
    """Returns the error for a grammar that only waited while others were compiled."""
    words = f"other grammars have been compiling for {timeout_s:g} s, try again later"
    return ErrorInfo(503, f"{param or 'the grammar'} was not compiled: {words}", "service_unavailable", param, "busy")


def grammar_is_late(timeout_s: float, param: str | None = None) -> ErrorInfo:
    """Returns the error for a grammar that was not compiled in time. On a machine with less work it may be."""
    words = f"it was not compiled within {timeout_s:g} s: try again later, or make it simpler"
    return ErrorInfo(503, f"{param or 'the grammar'} cannot be used now: {words}", "service_unavailable", param, "busy")


def shortened(words: str) -> str:
    """Returns the library's message without its internal state, shortened to a readable length."""
    words = words.split("\n<", 1)[0].strip()
    return words if len(words) <= MAX_WORDS_CHARS else f"{words[:MAX_WORDS_CHARS]}…"
