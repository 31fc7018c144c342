"""The file of `--api-keys`: a table `[NAME]` in TOML for each key."""

import hashlib
import re
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from messages.errors import UsageError, errors_as

MAX_FILE_BYTES = 16 << 20
MAX_KEYS = 10_000
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""A bare key of TOML. No address looks like one, except for a number."""

KEY_PREFIX = "sk-sluice-"
HASH_PREFIX = "sha256:"
MAX_RATE = 10**12

Rate = Annotated[int, Meta(ge=1, le=MAX_RATE)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file has about one key. A limit that is absent does not exist."""

    hash: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
    admin: bool = False
    models: Annotated[tuple[ModelName, ...], Meta(max_length=1000)] = ()
    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None
    max_running: Rate | None = None
    share: Annotated[int, Meta(ge=1, le=1000)] = 1
    priority: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.hash.removeprefix(HASH_PREFIX))


def new_key() -> str:
    """Returns a random key of 256 bits, whose hash cannot be reversed by guessing."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_of(key: str) -> str:
    """Returns what the file has of a key."""
    return HASH_PREFIX + hashlib.sha256(key.encode()).hexdigest()


def read_key_file(path: Path) -> dict[str, KeyEntry]:
    """Returns the keys by name. Raises `UsageError` with the file, the line and the field."""
    with errors_as(UsageError, f"{path} cannot be read"), path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise UsageError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        return parse_keys(content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}, line {line}: it is not text in UTF-8") from None
    except UsageError as error:
        raise UsageError(f"{path}, {error}") from None


def parse_keys(text: str) -> dict[str, KeyEntry]:
    """Returns the keys in the text of a file. Raises `UsageError` with the line and the field."""
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        found = re.search(r" \(at line (\d+), column \d+\)", str(error))
        line = found[1] if found else text.count("\n") + 1
        raise UsageError(f"line {line}: it is not TOML: {re.sub(r' [(]at .*', '', str(error))}") from None
    if len(tables) > MAX_KEYS:
        raise UsageError(f"line {_find_line(text, list(tables)[MAX_KEYS], '')}: more than {MAX_KEYS} keys")
    names: dict[str, str] = {}
    for name, table in tables.items():
        other = names.setdefault(_read_entry(text, name, table).hash, name)
        if other != name:
            raise UsageError(f"line {_find_line(text, name, 'hash')}: {name}.hash: it is that of {other}, too")
    return {name: msgspec.convert(table, KeyEntry) for name, table in tables.items()}


def _read_entry(text: str, name: str, table: Any) -> KeyEntry:
    if not NAME.fullmatch(name):
        raise UsageError(
            f"line {_find_line(text, name, '')}: {name[:80]!r} is not a name: it may have 1 to 64 letters, digits, "
            "_ and -"
        )
    if not isinstance(table, Mapping):
        raise UsageError(f"line {_find_line(text, name, '')}: {name}: a key is a table [{name}] with a hash")
    try:
        return msgspec.convert(table, KeyEntry)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        path = path.removesuffix("`")
        field = path.partition("[")[0].partition(".")[0]
        place = path.removeprefix(field)
        if "required field" in reason:
            field, reason = "hash", "it is missing: a hash as launch.py keys add writes it"
        elif "unknown field" in reason:
            field = reason.partition("`")[2].removesuffix("`")[:80]
            reason = f"there is no such field; fields are {', '.join(KeyEntry.__struct_fields__)}"
        if field == "hash" and "regex" in reason:
            reason = "it must be sha256: and 64 hexadecimal digits in lower case"
        line = _find_line(text, name, field)
        raise UsageError(f"line {line}: {name}.{field}{place}: {reason[:1].lower()}{reason[1:]}") from None


def _find_line(text: str, name: str, field: str) -> int:
    """Returns the line of a field, or of its table if the field is elsewhere or missing."""
    lines = text.splitlines()
    begin = next((index for index, line in enumerate(lines) if table_in(line) == name), None)
    if begin is None:  # written in another way, such as `NAME = {…}`
        return next((index for index, line in enumerate(lines, 1) if name in line), 1)
    for index, line in enumerate(lines[begin + 1 :], begin + 2):
        if line.lstrip().startswith("["):
            break
        if field and _bare(line.partition("=")[0].partition(".")[0]) == field:
            return index
    return begin + 1


def table_in(line: str) -> str:
    """Returns the name of the table that begins in the line, "" if none does."""
    return _bare(line.strip()[1:].partition("]")[0]) if line.lstrip().startswith("[") else ""


def _bare(key: str) -> str:
    return key.strip().strip("\"'")
