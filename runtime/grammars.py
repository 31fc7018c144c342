"""What an output may be, compiled by `llguidance` for the model's tokenizer; tokenizer and scheduler both do it.

Nothing is imported or loaded before the first grammar: the tokenizer takes up to a second and 100 MB.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from messages.errors import SluiceError
from runtime.special_tokens import TOKENIZER_JSON
from runtime.tokenizer_files import read_tokenizer_json, return_freed_memory

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NUM_KEPT = 64
"""Compiled grammars that are kept for the next request that has the same."""

MAX_USES = 1_000
"""Of one that is kept: all its matchers share the lexer's states, of which there are more and more."""

MAX_WORDS_CHARS = 240

LIMITS = {
    "max_grammar_size": 200_000,
    "max_lexer_states": 50_000,
    "max_items_in_row": 1_000,
    "step_max_items": 10_000,
    "step_lexer_fuel": 100_000,
    "verbose_errors": False,
}
"""Of `LLParserLimits`: with the default ones a bitmask can take more than a second."""


class GrammarError(SluiceError):
    """A grammar cannot be used, in the words of llguidance where they are its own."""


@dataclass
class _Compiled:
    matcher: "LLMatcher"
    num_uses: int = 0


class GrammarCompiler:
    """Compiles grammars in llguidance's form. Its methods may be called in several threads.

    `vocab_size` is the model's; the tokens `eos_token_ids` may only come where the output may end.
    """

    def __init__(self, directory: str, vocab_size: int, eos_token_ids: Collection[int]):
        self._directory = directory
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._lock = threading.Lock()
        self._load_lock = threading.Lock()
        """One of its own: nobody who looks for a compiled grammar waits for the tokenizer."""
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[str, _Compiled] = OrderedDict()

    def find(self, text: str) -> "LLMatcher | None":
        """Returns a matcher of the grammar, if it is known already; in microseconds."""
        with self._lock:
            known = self._compiled.get(text)
            if known is None:
                return None
            self._compiled.move_to_end(text)
            known.num_uses += 1
            if known.num_uses == MAX_USES:
                del self._compiled[text]
            return known.matcher.deep_copy()

    def compile(self, text: str) -> "LLMatcher":
        """Returns a matcher that stands at the beginning. Raises `GrammarError` for one that no output can satisfy."""
        known = self.find(text)
        if known is not None:
            return known
        tokenizer = self.tokenizer()
        library: Any = import_module("llguidance")
        matcher: LLMatcher = library.LLMatcher(tokenizer, text, log_level=0, limits=library.LLParserLimits(**LIMITS))
        _check_beginning(matcher)
        with self._lock:
            self._compiled[text] = _Compiled(matcher)
            if len(self._compiled) > NUM_KEPT:
                self._compiled.popitem(last=False)
            return matcher.deep_copy()

    def tokenizer(self) -> "LLTokenizer":
        """Returns the model's tokenizer, loaded at the first call. Raises `GrammarError` where llguidance cannot."""
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
        except Exception as error:
            reason = f"{TOKENIZER_JSON} is missing" if isinstance(error, FileNotFoundError) else str(error)
            raise GrammarError(f"this model's tokenizer cannot be used with a grammar: {shortened(reason)}") from error


def _check_beginning(matcher: "LLMatcher") -> None:
    """Raises `GrammarError` unless an output can begin. The bitmask is made so that the next one is quick."""
    if matcher.is_error():
        raise GrammarError(shortened(matcher.get_error()))
    bitmask = int.from_bytes(matcher.compute_bitmask(), "little")
    words = matcher.get_error()
    if words.startswith("NoExtension"):
        raise GrammarError("nothing satisfies the grammar: it goes on without end")
    if words:
        raise GrammarError(shortened(words))
    if matcher.is_stopped():
        raise GrammarError("nothing but an empty output satisfies the grammar")
    only = bitmask.bit_length() - 1
    if bitmask.bit_count() <= 1 and not matcher.validate_tokens([max(0, only)]):
        raise GrammarError("the model's vocabulary cannot write what the grammar wants first")


def shortened(words: str) -> str:
    """Returns the library's words without its state, and not more than a client can read."""
    words = words.split("\n<", 1)[0].strip()
    return words if len(words) <= MAX_WORDS_CHARS else f"{words[:MAX_WORDS_CHARS]}…"
