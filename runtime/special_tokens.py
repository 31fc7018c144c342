"""Reads the tokens in tokenizer_config.json and special_tokens_map.json, in addition to tokenizer.json.

As in `transformers`, a token that tokenizer.json lacks is added to it, because a chat template may use it.
"""

import logging
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from messages.errors import BootError, errors_as
from runtime.model_files import read_object

CONFIG_FILE = "tokenizer_config.json"
TOKENIZER_JSON = "tokenizer.json"
TOKENS_FILE = "special_tokens_map.json"
DECODER = "added_tokens_decoder"
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LISTS = ("additional_special_tokens", "extra_special_tokens")

log = logging.getLogger("sluice.runtime")


class NamedToken(msgspec.Struct, frozen=True):
    """A token, as in `tokenizers.AddedToken`; `normalized` defaults to `not special`."""

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool | None = None
    special: bool | None = None


TokenId = Annotated[int, Meta(ge=0, lt=1 << 24)]
Listed = list[str | NamedToken] | dict[str, str | NamedToken]


class TokenizerFields(NamedTuple):
    """The fields of tokenizer_config.json, and those of special_tokens_map.json."""

    config: dict[str, Any]
    tokens: dict[str, Any]


def read_fields(directory: Path) -> TokenizerFields:
    """Returns the fields of both files. A file that cannot be read is logged and ignored."""
    return TokenizerFields(read_fields_of(directory / CONFIG_FILE), read_fields_of(directory / TOKENS_FILE))


def special_texts(fields: TokenizerFields) -> dict[str, str]:
    """Returns the texts of tokens by name, such as `bos_token`. A token is a string or an object with `content`."""
    texts: dict[str, str] = {}
    for name, value in (fields.tokens | fields.config).items():
        text = value.get("content") if isinstance(value, dict) else value  # pyright: ignore
        if name.endswith("_token") and isinstance(text, str):
            texts[name] = text
    return texts


def named_tokens(directory: Path) -> list[NamedToken]:
    """Returns the tokens that the files name, in the order of their ids. Raises `BootError` for an invalid one."""
    config, tokens = read_fields(directory)
    by_id = _convert(config.get(DECODER) or {}, dict[TokenId, NamedToken], directory, DECODER)
    found = [msgspec.structs.replace(token, special=bool(token.special)) for _, token in sorted(by_id.items())]
    fields = (tokens if not by_id else {}) | {name: value for name, value in config.items() if value}
    for name in sorted(fields, key=lambda name: NAMES.index(name) if name in NAMES else len(NAMES)):
        if name.endswith("_token") and isinstance(fields[name], str | dict):
            found.append(_special(_convert(fields[name], str | NamedToken, directory, name)))
    for name in LISTS:
        listed: Listed = _convert(fields.get(name) or [], Listed, directory, name)
        found += [_special(token) for token in (listed.values() if isinstance(listed, dict) else listed)]
    unique: dict[str, NamedToken] = {}
    for token in found:
        first = unique.setdefault(token.content, token)
        unique[token.content] = msgspec.structs.replace(first, special=first.special or token.special)
    return list(unique.values())


def find_token_id(directory: Path, content: str) -> int | None:
    """Returns the id of a token according to the tokenizer's files, `None` if it is in none of them."""
    decoder = _convert(read_fields(directory).config.get(DECODER) or {}, dict[TokenId, NamedToken], directory, DECODER)
    for token_id, token in decoder.items():
        if token.content == content:
            return token_id
    try:
        tokenizer = msgspec.json.decode((directory / TOKENIZER_JSON).read_bytes(), type=TokenizerJson)
        for added in tokenizer.added_tokens:
            if added.content == content:
                return added.id
        vocab = msgspec.json.decode(tokenizer.model, type=_Model).vocab
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None  # the tokenizer process reports the error in the file
    return vocab.get(content) if isinstance(vocab, dict) else None


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class TokenizerJson(msgspec.Struct):
    """The parts of tokenizer.json that are read; the rest is large."""

    model: msgspec.Raw
    added_tokens: list[_AddedToken] = []


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[Any] = []


def _special(token: str | NamedToken) -> NamedToken:
    return NamedToken(token, special=True) if isinstance(token, str) else msgspec.structs.replace(token, special=True)


def _convert(value: Any, kind: Any, directory: Path, name: str) -> Any:
    with errors_as(BootError, f"{directory / CONFIG_FILE}: {name} does not name tokens", of=msgspec.ValidationError):
        return msgspec.convert(value, kind, strict=False)


def read_fields_of(file: Path) -> dict[str, Any]:
    """Returns the fields of a JSON file of a tokenizer, none if there is none; one that cannot be read is logged."""
    if not file.exists():
        return {}
    try:
        return read_object(file)
    except BootError as error:
        log.error("%s: the file is ignored", error)
        return {}
