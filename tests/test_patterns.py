"""Every pattern over text of clients or files takes linear time: all regular expressions of the program are checked."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.js_patterns import read_js_patterns
from tests.patterns import Mode, find_blowup

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    *("detokenizer_proc", "extras", "frontend", "kernels", "messages", "runtime", "scheduler_proc", "supervisor"),
    "tokenizer_proc",
)
LIBRARIES = {"re", "regex"}
MODES: dict[str, Mode] = {"fullmatch": "fullmatch", "match": "match"}
"""How functions and methods begin and end a match; all others search."""

USES = {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}

IN_TIME = "a limit of time (MAX_SEARCH_S) ends it: the pattern comes with a model"
EXEMPT = {
    ("frontend/http/body.py", "HALF_PAIR"): "its repeats are possessive: nothing is tried again",
    ("frontend/parsing/marks.py", "_pattern"): IN_TIME,
    ("frontend/parsing/marks.py", "_first"): "it is one class of characters",
    ("frontend/parsing/pythonic_calls.py", "WORD"): "the scanner has found the end of each string in the text before",
    ("frontend/parsing/pythonic_calls.py", "TOKEN"): "nothing is read behind the first string without an end",
    ("frontend/parsing/whole_calls.py", "before"): IN_TIME,
    ("frontend/parsing/whole_calls.py", "behind"): IN_TIME,
    ("frontend/parsing/whole_calls.py", "pattern"): IN_TIME,
    ("tokenizer_proc/infill.py", "inside"): "it is made of plain texts",
}
"""By file and the name of the pattern, or its source: why it may be slow, or cannot be checked here."""


class Found(NamedTuple):
    """A regular expression in a file; `pattern` is `None` if it is made while the program runs."""

    file: str
    line: int
    name: str
    source: str
    pattern: str | bytes | None
    flags: int
    mode: Mode


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def python_files() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def methods_of(path: Path) -> dict[str, set[str]]:
    """Returns the methods by which each name in a file is used to match."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute) and node.attr in {*USES, "scanner"}:
            owner = node.value
            found.setdefault(getattr(owner, "id", getattr(owner, "attr", "")), set()).add(node.attr)
    return found


def mode_of(path: Path, call: ast.Call, names: list[str]) -> Mode:
    """Returns the weakest anchors of all uses, in the same file if there are any."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if function != "compile":
        return MODES.get(function, "search")
    for files in ([path], python_files()):
        if used := {method for file in files for name in names for method in methods_of(file).get(name, ())}:
            break
    modes: set[Mode] = {MODES.get(method, "search") for method in used}
    return "search" if "search" in modes or not modes else "match" if "match" in modes else "fullmatch"


def calls_of(tree: ast.Module) -> Iterator[tuple[ast.Call, list[str]]]:
    """Yields the calls that take a pattern, each with the names that it is bound to."""
    names: dict[ast.AST, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound = [
                each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])
            ]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] * len(bound)
            for target, value in zip(bound, values, strict=False):
                if value is not None:
                    name = getattr(target, "id", getattr(target, "attr", ""))
                    names.setdefault(value, []).append(name)
        elif isinstance(node, ast.keyword) and node.arg:
            names.setdefault(node.value, []).append(node.arg)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in LIBRARIES
            and node.func.attr in USES
        ):
            yield node, names.get(node, [])


def flags_of(call: ast.Call, names: dict[str, Any]) -> int:
    provided = [keyword.value for keyword in call.keywords if keyword.arg == "flags"]
    function = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    provided += call.args[1:] if function == "compile" else call.args[2:3] if function in ("match", "fullmatch") else []
    value = int(evaluate(provided[0], names)) if provided else 0
    return value & int(re.ASCII | re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE)


def evaluate(node: ast.expr, names: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(node), "pattern", "eval"), dict(names))


@cache
def python_patterns() -> tuple[Found, ...]:
    found: list[Found] = []
    for path in python_files():
        name = str(path.relative_to(ROOT))
        calls = list(calls_of(tree_of(path)))
        if not calls:
            continue
        names = vars(importlib.import_module(name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")))
        for call, bound in calls:
            source = ast.unparse(call.args[0])
            if source in names and isinstance(names[source], re.Pattern):
                continue  # `re.findall(PATTERN, …)`
            try:
                pattern, flags = evaluate(call.args[0], names), flags_of(call, names)
            except NameError:
                pattern, flags = None, 0
            named = bound if getattr(call.func, "attr", "") == "compile" else []
            mode = mode_of(path, call, bound)
            found.append(Found(name, call.lineno, (*named, source)[0], source, pattern, flags, mode))
    return tuple(found)


@cache
def js_patterns() -> tuple[Found, ...]:
    """Returns the patterns of the pages' own scripts, without libraries."""
    scripts = [path for package in PACKAGES for path in (ROOT / package).rglob("*.*js")]
    files = [path for path in scripts if not path.name.endswith(".min.js") and "vendor" not in path.parts]  # libraries
    return tuple(
        Found(str(path.relative_to(ROOT)), each.line, each.pattern, each.pattern, each.pattern, each.flags, each.mode)
        for path in sorted(files)
        for each in read_js_patterns(path.read_text(encoding="utf-8"))
    )


def fault_of(found: Found) -> str:
    if found.pattern is None:
        return "is made while the program runs"
    try:
        return find_blowup(found.pattern, found.flags, found.mode)
    except (re.error, NotImplementedError) as error:
        return f"cannot be checked: {error}"


def test_every_pattern_takes_linear_time_or_is_exempt_for_a_reason():
    faults = [(found, fault) for found in all_patterns() if (fault := fault_of(found))]
    shown = [
        f"{found.file}:{found.line}: {fault} ({found.mode}): {found.source}"
        for found, fault in faults
        if (found.file, found.name) not in EXEMPT
    ]
    assert not shown, "\n".join(shown)
    unneeded = EXEMPT.keys() - {(found.file, found.name) for found, _ in faults}
    assert not [key for key in unneeded if (ROOT / key[0]).exists()], "these need no exemption any more"


def all_patterns() -> tuple[Found, ...]:
    return python_patterns() + js_patterns()


def test_patterns_of_all_kinds_are_found():
    by_file = {found.file for found in all_patterns()}
    assert {
        "frontend/http/framing.py",
        "extras/models/config.py",
        "scheduler_proc/computing/loading/checkpoint.py",
    } <= by_file
    assert any(file.endswith("js") for file in by_file)
    assert len(all_patterns()) > 80


OLD_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|)"


@pytest.mark.parametrize(
    ("pattern", "mode", "fault"),
    [
        (rf"([+-]?)((?:{OLD_PART})+)", "fullmatch", "exponential"),
        (r"""(?s)['"](query|document)['"].*['"](?!\1)(query|document)['"]""", "search", "polynomial"),
        (r"(a*)*b", "match", "exponential"),
        (r"(a|a)*b", "match", "exponential"),
        (r"(a|aa)+$", "match", "exponential"),
        (r"(?:a?b?)+c", "match", "exponential"),
        (r"(x+x+)+y", "search", "exponential"),
        (r"\s+$", "search", "polynomial"),
        (r"a*a*b", "fullmatch", "polynomial"),
        (r"(.*)=(.*);", "match", "polynomial"),
        (r"a(?=.*b)", "search", "polynomial"),
        (rb"[^a]+b", "search", "polynomial"),
        (r"(?<=[{,])\s*([\w.-]+)\s*:", "search", ""),
        (r"\s+$", "match", ""),
        (r"^\s+$", "search", ""),
        (r"a*a*", "match", ""),
        (r"\w+", "search", ""),
        (r"(?:[^,]*,)*[^,]*", "fullmatch", ""),
        (r"<[^<>\s]{1,64}>", "search", ""),
        (r"(\d+)(ns|ms|s)?", "fullmatch", ""),
    ],
)
def test_what_the_check_finds(pattern: str | bytes, mode: Mode, fault: str):
    assert find_blowup(pattern, 0, mode) == fault
