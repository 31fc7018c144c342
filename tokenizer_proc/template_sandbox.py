"""The sandbox for chat templates, which are code from a checkpoint.

A template may use the functions that `transformers` provides. Jinja's sandbox prevents access to Python's internals and
changes of the input; the template's process limits its time and memory (`template_process.py`).
"""

import json
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the model's text for training; here only its contents remain."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class PlainNamespace(Namespace):
    """Jinja's `namespace` without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment in which templates are compiled and rendered."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
        names: dict[str, Any] = self.globals  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        names |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "namespace": PlainNamespace,
            "dict": _make_dict,
        }
        del names["lipsum"]
        self.filters["tojson"] = _tojson  # pyright: ignore[reportUnknownMemberType]


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not have the name {name!r}")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Unlike Jinja's filter, does not escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
