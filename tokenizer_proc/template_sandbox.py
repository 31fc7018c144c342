"""Where chat templates run: a template is code that came with a checkpoint, so it sees little and its work is bounded.

What a template may use is what `transformers` gives it. Jinja's sandbox keeps it from Python's internals and from
changing its input; here a timer bounds its time, and no text may grow without limit.
"""

import json
import re
import signal
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import TemplateError, nodes, pass_context
from jinja2.environment import Template
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_CPU_S = 0.4
"""Of one rendering, in which no other prompt is served. Real ones take about 20 microseconds for each message."""

MAX_CHARS = 20_000_000
"""Of a rendered chat, and of each text on the way to it; no list is longer either."""

WIDE_PERCENT = re.compile(r"%[-#0 +.\d]*(\*|\d{7})")
WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*\d{7}")
"""Formats of a million characters and more."""

OPERATORS = frozenset(("+", "*", "**", "%"))


class OutOfTimeError(BaseException):
    """Ends a rendering, past whatever catches an `Exception` in it."""


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model wrote, for training; here it is only its contents."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class PlainNamespace(Namespace):
    """Jinja's `namespace`, but for names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class Meter(NodeTransformer):
    """Rewrites a template so that texts which could grow and grow are looked at."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return nodes.Call(nodes.EnvironmentAttribute("check_size"), [node], [], None, None)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.filter = nodes.Filter(node.filter, "check_size", [], [], None, None)  # pyright: ignore[reportArgumentType]
        return node


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles templates and renders them, one at a time, in the process's main thread."""

    intercepted_binops = OPERATORS

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            optimized=False,  # or the compiler computes constants, as long as it takes
            finalize=_as_it_is,
        )
        names: dict[str, Any] = self.globals  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        names |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "namespace": PlainNamespace,
            "dict": _make_dict,
        }
        del names["lipsum"]
        self.filters["tojson"] = _tojson
        self.filters = {name: self._metered(function) for name, function in self.filters.items()}
        self.filters["check_size"] = self.check_size
        signal.signal(signal.SIGPROF, _end_rendering)

    def compile_template(self, source: str) -> Template:
        """Returns the template. Raises `TemplateError` for one with a mistake."""
        tree: nodes.Template = Meter().visit(self.parse(source))
        return Template.from_code(self, self.compile(tree), self.make_globals(None))

    def render(self, template: Template, variables: dict[str, Any]) -> str:
        """Returns the text. Raises `TemplateError` for too much work, and whatever the template makes go wrong."""
        # The timer is nobody else's signal: it must not wake the process's main loop, which takes that for a stop.
        wakeup = signal.set_wakeup_fd(-1)
        try:
            signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
            try:
                return _join(template, variables)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        except OutOfTimeError:
            raise TemplateError(f"the template has worked for {MAX_CPU_S:g} s and is not done") from None
        finally:
            signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def check_size(self, value: Any) -> Any:
        """Returns `value`. Raises `TemplateError` for a text or list that is too long."""
        if isinstance(value, str | list | tuple) and len(value) > MAX_CHARS:  # pyright: ignore[reportUnknownArgumentType]
            raise _too_long()
        return value  # pyright: ignore[reportUnknownVariableType]

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox puts a function of its own before str.format
        if isinstance(getattr(method, "__self__", None), str):
            _check_arguments(method.__self__, method.__name__, (*args, *kwargs.values()))
        return __self.check_size(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            sizes = [len(side) if isinstance(side, str | list | tuple) else side for side in (left, right)]  # pyright: ignore[reportUnknownArgumentType]
            if any(isinstance(side, str | list | tuple) for side in (left, right)) and sizes[0] * sizes[1] > MAX_CHARS:
                raise _too_long()
        elif operator == "**" and not (abs(left) <= 2**16 and abs(right) <= 64):
            raise TemplateError("the template computes with too large a number")
        elif operator == "%" and isinstance(left, str) and WIDE_PERCENT.search(left):
            raise _too_long()
        return self.check_size(super().call_binop(context, operator, left, right))

    def _metered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            for i, value in enumerate(args):
                if isinstance(value, str):
                    _check_arguments(value, function.__name__.removeprefix("do_"), (*args[i + 1 :], *kwargs.values()))
                    break
            return self.check_size(function(*args, **kwargs))

        return metered


def _join(template: Template, variables: dict[str, Any]) -> str:
    parts: list[str] = []
    num_chars = 0
    for part in template.generate(variables):
        num_chars += len(part)
        if num_chars > MAX_CHARS:
            raise _too_long()
        parts.append(part)
    return "".join(parts)


def _end_rendering(signal_number: int, frame: object) -> None:
    raise OutOfTimeError


def _check_arguments(text: str, name: str, arguments: tuple[Any, ...]) -> None:
    """Raises for a method or filter `name` of `text` that would make far more of it."""
    if any(isinstance(value, int) and abs(value) > MAX_CHARS for value in arguments):
        raise _too_long()
    longest = max((len(value) for value in arguments if isinstance(value, str)), default=0)
    if name == "replace" and len(text) * longest > MAX_CHARS and (text.count(str(arguments[0])) * longest > MAX_CHARS):
        raise _too_long()
    if name == "format" and (WIDE_PERCENT.search(text) or WIDE_BRACES.search(text)):
        raise _too_long()


def _too_long() -> TemplateError:
    return TemplateError(f"the template makes a text of more than {MAX_CHARS} characters")


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not have the name {name!r}")


@pass_context
def _as_it_is(context: Context, value: Any) -> Any:
    """Does nothing, but a function that needs the context keeps the compiler from computing outputs beforehand."""
    return value


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Unlike Jinja's own, it escapes no HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
