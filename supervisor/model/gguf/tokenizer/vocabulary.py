"""The vocabulary in a GGUF file's metadata, checked: tokens with their types and scores, merges, and special tokens."""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NoReturn, cast

from messages.errors import BootError, quoted

MAX_TOKENS = 1 << 20
MAX_TOKEN_CHARS = 1024
"""The longest tokens of real models are runs of some hundred spaces."""

MAX_MERGE_CHARS = MAX_TOKEN_CHARS + 1

PREFIX = "tokenizer.ggml."
ID_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
    **{f"fim_{part}_token": f"fim_{part}_token_id" for part in ("pre", "suf", "mid", "pad", "rep", "sep")},
}
"""Names of special tokens in tokenizer_config.json, and their keys in GGUF."""

DEFAULT_IDS = {
    "llama": {"bos_token": 1, "eos_token": 2, "unk_token": 0},
    "bert": {"unk_token": 100, "cls_token": 101, "sep_token": 102, "mask_token": 103, "pad_token": 0},
    "t5": {"eos_token": 1, "unk_token": 2, "pad_token": 0},
}
"""Special tokens of a kind of tokenizer whose key is missing, as in llama.cpp."""

SPECIAL_TEXT = re.compile(
    r"<\|(eot_id|eom_id|im_end|end|return|call|calls|flush|endoftext|end_of_text|fim_\w+|repo_name|file_sep)\|>"
    "|<end_of_turn>|<end_of_utterance>|<turn[|]>|<EOT>|<｜end▁of▁sentence｜>"
)
"""Tokens that are special even if the file marks them as text, which some converters did."""

ALWAYS_NAMED = ("bos_token", "eos_token")
"""Named in tokenizer_config.json even if the file marks them as text."""


log = logging.getLogger("sluice.gguf")


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_TYPES = (TokenType.UNKNOWN, TokenType.CONTROL)


@dataclass(frozen=True)
class Vocabulary:
    """`kind` is `tokenizer.ggml.model`. `ids` has the special tokens by name, such as `bos_token`."""

    kind: str
    texts: list[str]
    types: Sequence[int]
    ids: dict[str, int]
    metadata: Mapping[str, Any]

    def is_special(self, token_id: int) -> bool:
        return self.types[token_id] in SPECIAL_TYPES or SPECIAL_TEXT.fullmatch(self.texts[token_id]) is not None

    def named_ids(self) -> dict[str, int]:
        """Returns the special tokens by name. A padding or unknown token that is ordinary text is left out."""
        ids = self.ids.items()
        return {name: token_id for name, token_id in ids if name in ALWAYS_NAMED or self.is_special(token_id)}

    def unknown_text(self) -> str | None:
        return self.texts[self.ids["unk_token"]] if "unk_token" in self.ids else None

    def id_of_text(self) -> dict[str, int]:
        return {text: token_id for token_id, text in enumerate(self.texts)}

    def flag(self, key: str, default: bool) -> bool:
        """Returns a switch of the metadata. Raises `BootError` if it is no boolean."""
        value = self.metadata.get(PREFIX + key, default)
        return value if isinstance(value, bool) else refuse(key, f"is {quoted(value)}, not true or false")

    def scores(self) -> list[float]:
        """Returns a number per token. Raises `BootError` if one is missing or not finite."""
        scores = _entries(self.metadata, "scores", len(self.texts), (int, float))
        for token_id, score in enumerate(scores):
            if not math.isfinite(score):
                refuse("scores", f"token {token_id} ({quoted(self.texts[token_id])}) has the score {score}")
        return scores

    def merges(self) -> list[tuple[str, str]]:
        """Returns the pairs that are merged, the first ones first.

        An entry that does not make a token of two tokens can make none: it is left out, with a warning.
        """
        known = set(self.texts)
        merges: dict[tuple[str, str], None] = {}
        num_other, other = 0, ""
        for merge in _entries(self.metadata, "merges", None, str):
            split = merge.find(" ", 1)
            pair = merge[:split], merge[split + 1 :]
            if len(merge) <= MAX_MERGE_CHARS and split > 0 and known.issuperset((*pair, "".join(pair))):
                merges[pair] = None
            else:
                num_other, other = num_other + 1, other or merge
        if num_other:
            log.warning("%d merges do not make a token of two tokens and are not used: %s", num_other, quoted(other))
        return list(merges)


def read_vocabulary(metadata: Mapping[str, Any], kinds: Sequence[str]) -> Vocabulary:
    """Returns the vocabulary. Raises `BootError`, with key and entry, if it is damaged or its kind not in `kinds`."""
    kind: Any = metadata.get(PREFIX + "model")
    if not isinstance(kind, str) or kind not in kinds:
        fault = "is missing" if kind is None else f"is {quoted(kind)}"
        raise BootError(
            f"{PREFIX}model {fault}: this kind of tokenizer cannot be read from a GGUF file ({', '.join(kinds)} can); "
            "give a directory with the model's tokenizer.json with --tokenizer"
        )
    texts = _texts(metadata)
    types = [TokenType.NORMAL] * len(texts)
    if PREFIX + "token_type" in metadata:
        types = _entries(metadata, "token_type", len(texts), int)
    return Vocabulary(kind, texts, types, _special_ids(metadata, kind, len(texts)), metadata)


def read_text(metadata: Mapping[str, Any], key: str) -> str:
    """Returns a text that the file need not have: empty if it is missing, or no text."""
    try:
        value = metadata.get(key)
    except BootError:  # it is not UTF-8
        return ""
    return value if isinstance(value, str) else ""


def refuse(key: str, fault: str) -> NoReturn:
    raise BootError(f"the tokenizer in the GGUF file is damaged: {PREFIX}{key}: {fault}")


def _texts(metadata: Mapping[str, Any]) -> list[str]:
    texts: list[str] = []
    first: dict[str, int] = {}
    entries = _entries(metadata, "tokens", None, str)
    if len(entries) > MAX_TOKENS:
        refuse("tokens", f"has {len(entries)} entries; the limit is {MAX_TOKENS}")
    for token_id, text in enumerate(entries):
        text = text or f"[EMPTY_{token_id}]"  # as llama.cpp names them
        if len(text) > MAX_TOKEN_CHARS:
            refuse("tokens", f"token {token_id} has {len(text)} characters; the limit is {MAX_TOKEN_CHARS}")
        if first.setdefault(text, token_id) != token_id:
            refuse("tokens", f"tokens {first[text]} and {token_id} are the same: {quoted(text)}")
        texts.append(text)
    return texts or refuse("tokens", "has no tokens")


def _special_ids(metadata: Mapping[str, Any], kind: str, num_tokens: int) -> dict[str, int]:
    ids = {name: token_id for name, token_id in DEFAULT_IDS.get(kind, {}).items() if token_id < num_tokens}
    for name, key in ID_KEYS.items():
        token_id = metadata.get(PREFIX + key)
        if token_id is None:
            continue
        if type(token_id) is not int:
            refuse(key, f"{quoted(token_id)} is not the id of a token")
        if 0 <= token_id < num_tokens:
            ids[name] = token_id
        else:  # as llama.cpp does
            log.warning("%s%s is %d, which is none of the %d tokens: it is not used", PREFIX, key, token_id, num_tokens)
    return ids


def _entries(metadata: Mapping[str, Any], key: str, count: int | None, kind: Any) -> list[Any]:
    """Returns a list of the metadata, whose entries are of `kind`. Raises `BootError` unless it has `count` of them."""
    values: Any = metadata.get(PREFIX + key)
    if not isinstance(values, list):
        refuse(key, "is missing" if values is None else f"is a {type(values).__name__}, not a list")
    entries = cast("list[Any]", values)
    if count is not None and len(entries) != count:
        refuse(key, f"has {len(entries)} entries for {count} tokens")
    for index, value in enumerate(entries):
        if not isinstance(value, kind):
            refuse(key, f"entry {index} is {quoted(value)}")
    return entries
