"""Command-line flags made from the configuration tree: parsing, ranges, `--help`, and errors that name the flag."""

import argparse
import difflib
import math
import re
import types
import typing
from collections.abc import Collection, Iterator
from typing import Any, Never, cast

import msgspec

from messages import VERSION
from messages.config.flag import Flag
from messages.config.images import ImageConfig
from messages.config.server import CacheConfig, HttpConfig, ModelConfig, RunConfig, SchedulingConfig
from messages.errors import UsageError
from messages.program import PROGRAM, START
from runtime.extras import load_sections
from supervisor.programs import command_names

CORE_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduling": SchedulingConfig,
    "http": HttpConfig,
    "images": ImageConfig,
    "run": RunConfig,
}

SHORT_HELP = (
    *("model", "served_model_name", "max_model_len", "dtype", "quantization", "device", "max_num_seqs", "host", "port"),
    "api_key",
)
"""The flags of the core that most people need. A flag of an extra is one of them if its `Flag` is short."""


def find_sections() -> dict[str, type[msgspec.Struct]]:
    """Returns all sections of flags by name: the core's, then those of the installed extras."""
    return {**CORE_SECTIONS, **load_sections()}


class _HelpAction(argparse.Action):
    """`--help` shows `SHORT_HELP`, `--help-all` all flags."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, option_string: str | None = None
    ) -> None:
        (parser if option_string == "--help-all" else make_parser(SHORT_HELP)).print_help()
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are `UsageError`s."""

    def error(self, message: str) -> Never:
        raise UsageError(re.sub(r"^argument (--[\w-]+): ", r"\1: ", message))


def parse_flags(arguments: list[str]) -> dict[str, msgspec.Struct]:
    """Returns the sections of flags by name. Raises `UsageError`; `--help` prints and exits with 0."""
    parser = make_parser()
    known, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise UsageError(describe_unknown(unknown[0], parser))
    provided = vars(known)
    return {
        section: msgspec.convert(
            {name: provided[name] for name in struct.__struct_fields__ if name in provided}, struct
        )
        for section, struct in find_sections().items()
    }


def flags_of(section: msgspec.Struct) -> list[str]:
    """Returns flags from which `parse_flags` restores this section, whatever its values look like."""
    flags: list[str] = []
    for field, _ in flag_fields(type(section)):
        value: Any = getattr(section, field.name)
        if value == field.default:
            continue
        if isinstance(value, bool):
            flags.append(flag_name(field.name if value else f"no_{field.name}"))
        else:
            values = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
            flags += [f"{flag_name(field.name)}={each}" for each in values]
    return flags


def make_parser(names: Collection[str] | None = None) -> argparse.ArgumentParser:
    """Returns the parser with one group per section and one flag per field, of the fields `names` if given.

    Flags that are not given stay out of the result.
    """
    with_server, others = command_names()
    other_commands = f"Others: {PROGRAM} {', '.join(others)}. " if others else ""
    parser = _Parser(
        prog=PROGRAM,
        description="Serves a language model over HTTP from separate processes.",
        epilog=f"Commands for a running server: {PROGRAM} {', '.join(with_server)}. "
        f"{other_commands}Each has --help. All flags: {PROGRAM} --help-all.",
        usage=f"{START} [--model DIR] [flags], or {PROGRAM} COMMAND",
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=110),
    )
    parser.add_argument("--version", action="version", version=f"sluice {VERSION}")
    parser.add_argument("-h", "--help", action=_HelpAction, nargs=0, help="show the common flags")
    parser.add_argument("--help-all", action=_HelpAction, nargs=0, help="show all flags")
    for struct in find_sections().values():
        fields = [
            (field, flag)
            for field, flag in flag_fields(struct)
            if names is None or field.name in names or flag.is_short
        ]
        group = parser.add_argument_group(str(struct.__doc__)) if fields else None
        for field, flag in fields:
            _add_flag(group, field, flag)
    return parser


def flag_fields(struct: type[msgspec.Struct]) -> Iterator[tuple[msgspec.structs.FieldInfo, Flag]]:
    """Yields the fields of a section that are flags."""
    for field in msgspec.structs.fields(struct):
        for flag in typing.get_args(field.type):
            if isinstance(flag, Flag):
                yield field, flag


def flag_name(field_name: str) -> str:
    """`max_num_seqs` → `--max-num-seqs`."""
    return "--" + field_name.replace("_", "-")


def _add_flag(group: Any, field: msgspec.structs.FieldInfo, flag: Flag) -> None:
    value_type = _value_type(field.type)
    text = argparse.SUPPRESS if flag.is_hidden else f"{flag.text}{_default_text(field.default)}".replace("%", "%%")
    base, metavar = _base(value_type), flag.metavar
    if base is bool:
        name = f"--no-{field.name.replace('_', '-')}" if field.default else flag_name(field.name)
        text = ("do not " if field.default else "") + text
        group.add_argument(name, dest=field.name, action="store_const", const=not field.default, help=text)
    elif typing.get_origin(base) is tuple:
        group.add_argument(flag_name(field.name), nargs="+", action="extend", metavar=metavar or "NAME", help=text)
    else:
        if typing.get_origin(base) is typing.Literal:
            metavar = "{" + ",".join(map(str, typing.get_args(base))) + "}"
        metavar = metavar or {int: "N", float: "X"}.get(base, "TEXT")
        optional: dict[str, Any] = {"nargs": "?", "const": flag.const} if flag.const else {}
        group.add_argument(flag_name(field.name), type=_converter(value_type), metavar=metavar, help=text, **optional)


def _value_type(field_type: Any) -> Any:
    """`Annotated[PositiveInt | None, …]` → `PositiveInt`; other types stay as they are."""
    inner = typing.get_args(field_type)[0]
    if typing.get_origin(inner) in (typing.Union, types.UnionType):
        return next(part for part in typing.get_args(inner) if part is not type(None))
    return field_type


def _base(value_type: Any) -> Any:
    """`Annotated[int, …]` → `int`."""
    return typing.get_args(value_type)[0] if typing.get_origin(value_type) is typing.Annotated else value_type


def _converter(value_type: Any) -> Any:
    """Returns a function from a flag's text to its value; its errors say the value and the range."""
    base = _base(value_type)
    is_number_literal = typing.get_origin(base) is typing.Literal and isinstance(typing.get_args(base)[0], int)

    def convert(text: str) -> Any:
        try:
            if is_number_literal:
                return msgspec.convert(msgspec.convert(text, int, strict=False), base)
            return _finite(msgspec.convert(text, value_type, strict=False))
        except msgspec.ValidationError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not valid: {_plain(str(error), base)}") from None

    return convert


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise msgspec.ValidationError("expected a finite number")
    return value


def _plain(error: str, base: Any) -> str:
    if typing.get_origin(base) is typing.Literal:
        choices = [str(choice) for choice in typing.get_args(base)]
        return f"expected one of {', '.join(choices)}"
    text = error.partition(", got ")[0]
    return text.replace("Expected `int`", "expected a whole number").replace("Expected `float`", "expected a number")


def _default_text(default: Any) -> str:
    return "" if default in (None, "", ()) or isinstance(default, bool) else f" (default: {default})"


def describe_unknown(argument: str, parser: argparse.ArgumentParser) -> str:
    """Returns the error for a word on the command line that `parser` does not know; only a server's has `--host`."""
    name = argument.split("=")[0]
    known = [option for action in parser._actions for option in action.option_strings]  # pyright: ignore[reportPrivateUsage]
    if not name.startswith("-"):
        model = f"a model is given as --model {argument}, and a command is the first word"
        return f"{argument}: unknown argument; {model if '--host' in known else 'see --help for all'}"
    begin = "--" + name.lstrip("-")
    nearest = difflib.get_close_matches(name, known, n=1) or [option for option in known if option.startswith(begin)]
    all_flags = "--help-all" if "--help-all" in known else "--help"
    hint = f"did you mean {nearest[0]}?" if nearest else f"see {all_flags} for all flags"
    return f"{name}: unknown flag; {hint}"
