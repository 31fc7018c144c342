"""`launch.py keys`: makes, lists and revokes keys in a file for `--api-keys`.

    launch.py keys add keys.toml team-a --requests-per-minute 60 --share 2
    launch.py keys list keys.toml
    launch.py keys revoke keys.toml team-a

`add` shows the new key once: the file has only its hash. Servers with this file follow within about a second.
Comments in the file stay.
"""

import argparse
import contextlib
import fcntl
import json
import os
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from extras.keys.key_file import NAME, KeyEntry, hash_of, new_key, parse_keys, read_key_file, table_in
from messages.errors import UsageError, errors_as
from messages.program import PROGRAM
from supervisor.cli.show import join_columns
from supervisor.programs import program_parser

DONE, USAGE = 0, 2
LIMITS = ("requests_per_minute", "tokens_per_minute", "max_running", "share", "priority")


def make_parser() -> argparse.ArgumentParser:
    parser = program_parser("keys", __doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    texts = {"add": (add, "make a key"), "list": (show, "list the keys"), "revoke": (revoke, "remove a key")}
    for name, (execute, text) in texts.items():
        own = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        own.add_argument("file", type=Path, metavar="FILE")
        if name != "list":
            own.add_argument("name", metavar="NAME", help="1 to 64 letters, digits, _ and -")
        own.set_defaults(execute=execute)
    own = commands.choices["add"]
    own.add_argument("--admin", action="store_true", help="for operators: sees what all have stored")
    own.add_argument("--models", nargs="+", metavar="NAME", help="models and adapters it may use; NAME* for a prefix")
    own.add_argument("--requests-per-minute", type=int, metavar="N")
    own.add_argument("--tokens-per-minute", type=int, metavar="N", help="prompt and output together")
    own.add_argument("--max-running", type=int, metavar="N", help="requests at a time")
    own.add_argument("--share", type=int, metavar="N", help="part of each step relative to other keys (default: 1)")
    own.add_argument("--priority", type=int, metavar="N", help="highest priority of its requests: the smallest number")
    return parser


def add(options: argparse.Namespace) -> int:
    """Adds a key and prints it."""
    key = new_key()
    values: dict[str, Any] = {"hash": hash_of(key)}
    values |= {"admin": True} if options.admin else {}
    values |= {"models": options.models} if options.models else {}
    values |= {name: value for name in LIMITS if (value := getattr(options, name)) is not None}
    if not NAME.fullmatch(options.name):
        raise UsageError(f"{options.name!r} is not a name: it may have 1 to 64 letters, digits, _ and -")
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    block = "\n".join([f"[{options.name}]", *lines, ""])
    with _locked(options.file) as path:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if options.name in (read_key_file(path) if text else {}):
            raise UsageError(f"{path} has a key {options.name} already: revoke it first, or choose another name")
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        text += gap + block
        try:
            parse_keys(text)
        except UsageError as error:
            raise UsageError(str(error).partition(": ")[2]) from None
        _write(path, text)
    print(key)
    print(f"the key of {options.name}; it is not shown again, {options.file} has its hash", file=sys.stderr)
    return DONE


def show(options: argparse.Namespace) -> int:
    entries = read_key_file(options.file)
    columns = ("NAME", "ADMIN", "MODELS", "REQ/MIN", "TOK/MIN", "RUNNING", "SHARE", "PRIORITY", "HASH")
    cells = [(name, *limit_texts(entry), entry.digest.hex()[:8]) for name, entry in entries.items()]
    print("\n".join(join_columns(columns, cells)))
    return DONE


def limit_texts(entry: KeyEntry) -> list[str]:
    """Returns what a list shows of a key, from `admin` to `priority`."""
    fields = asdict(entry)
    limits = ["-" if fields[name] is None else str(fields[name]) for name in LIMITS]
    return ["yes" if entry.admin else "-", ",".join(entry.models) or "all", *limits]


def revoke(options: argparse.Namespace) -> int:
    """Removes a key with the lines of its table."""
    with _locked(options.file) as path:
        left = read_key_file(path)
        if left.pop(options.name, None) is None:
            raise UsageError(f"{path} has no key {options.name}")
        text = _without_table(path.read_text(encoding="utf-8"), options.name)
        try:
            is_exact = parse_keys(text) == left
        except UsageError:
            is_exact = False
        if not is_exact:
            raise UsageError(f"{path}: {options.name} is not written as a table [{options.name}]: remove it by hand")
        _write(path, text)
    print(f"{options.name} is revoked; its requests that run continue", file=sys.stderr)
    return DONE


def _without_table(text: str, name: str) -> str:
    """Returns the text without a table; comments between it and the next one stay."""
    kept, is_removed, comments = list[str](), False, list[str]()
    for line in text.splitlines(keepends=True):
        if header := table_in(line):
            is_removed = header == name
            kept += comments
            comments = []
        if not is_removed:
            kept.append(line)
        elif line.lstrip().startswith("#"):
            comments.append(line)
        elif line.strip():
            comments = []
    return "".join([*kept, *comments])


@contextlib.contextmanager
def _locked(path: Path) -> Generator[Path]:
    """Yields the file itself while no other command changes a file of its directory."""
    path = path.resolve()
    with errors_as(UsageError, path.parent):
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield path
    finally:
        os.close(descriptor)


def _write(path: Path, text: str) -> None:
    """Replaces the file by a whole one that only this user can read."""
    with errors_as(UsageError, f"{path} cannot be written"):
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(path)


def main() -> int:
    """Returns 0, or 2 for a file or a name that cannot be used."""
    options = make_parser().parse_args()
    try:
        return options.execute(options)
    except UsageError as error:
        print(f"{PROGRAM} keys: {error}", file=sys.stderr)
        return USAGE


if __name__ == "__main__":
    raise SystemExit(main())
