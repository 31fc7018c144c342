"""Limits on the size of files, functions and parameter lists outside the tests, and names that mean nothing."""

import ast
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_KERNEL_LINES = 150
MAX_PARAMETERS = 7

EMPTY_FILE_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "base", "manager", "managers"}
EMPTY_CLASS_ENDINGS = ("Manager", "Handler", "Base", "Helper", "Helpers", "Utils", "Util", "Common", "Misc")
OUTSIDE = {"tests", "build", "dist", "assets"}

Function = ast.FunctionDef | ast.AsyncFunctionDef

FILES = sorted(
    file
    for top in ROOT.iterdir()
    if top.name not in OUTSIDE and not top.name.startswith(".")
    for file in ([top] if top.suffix == ".py" else top.rglob("*.py"))
)


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def is_gpu_kernel(function: Function) -> bool:
    """A kernel has a parameter for each pointer, stride and block size: the language has no other way."""
    return any("triton" in ast.unparse(decorator) for decorator in function.decorator_list)


def parameters_of(function: Function) -> list[str]:
    """Returns the names of the parameters that a caller passes, without self, cls and `**`."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def test_there_are_files_to_check():
    assert {"launch.py", "messages/config/server.py", "supervisor/supervisor.py"} <= set(map(name_of, FILES))


@functools.cache
def nodes_of(file: Path) -> list[ast.AST]:
    """Returns the module and its contents."""
    return list(ast.walk(ast.parse(file.read_text())))


def excesses(file: Path) -> Iterator[str]:
    num_lines = len(file.read_text().splitlines())
    if num_lines > MAX_FILE_LINES:
        yield f"{num_lines} lines"
    limit = MAX_KERNEL_LINES if file.is_relative_to(ROOT / "kernels") else MAX_FUNCTION_LINES
    for function in (node for node in nodes_of(file) if isinstance(node, Function)):
        assert function.end_lineno is not None
        num_lines = function.end_lineno - function.lineno + 1
        if num_lines > limit:
            yield f"{function.name} (line {function.lineno}) has {num_lines} lines"
        num_parameters = len(parameters_of(function))
        if num_parameters > MAX_PARAMETERS and not is_gpu_kernel(function):
            yield f"{function.name} (line {function.lineno}) has {num_parameters} parameters"


def empty_names(file: Path) -> Iterator[str]:
    module, *_ = nodes = nodes_of(file)
    assert isinstance(module, ast.Module)
    if not ast.get_docstring(module):
        yield "a module opens with one sentence: what it owns"
    parts = {part.removesuffix(".py").lower() for part in file.relative_to(ROOT).parts}
    yield from parts & EMPTY_FILE_NAMES
    for node in nodes:
        if isinstance(node, ast.ClassDef) and node.name.endswith(EMPTY_CLASS_ENDINGS):
            yield f"class {node.name} (line {node.lineno})"


@pytest.mark.parametrize("find_faults", [excesses, empty_names])
def test_files_keep_to_their_budgets_and_report_what_they_are(find_faults: Callable[[Path], Iterator[str]]):
    assert not [f"{name_of(file)}: {fault}" for file in FILES for fault in find_faults(file)]


def test_faults_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    file = tmp_path / "helpers.py"
    parameters = ", ".join(f"p{number}" for number in range(MAX_PARAMETERS + 1))
    file.write_text(f"class FileManager:\n    def f(self, {parameters}):\n" + "        pass\n" * MAX_FILE_LINES)
    assert len(list(excesses(file))) == 3
    assert len(list(empty_names(file))) == 3
