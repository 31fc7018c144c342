"""The budgets of size, and the names that say nothing: files, functions and parameters of everything but the tests."""

import ast
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
    for file in ROOT.rglob("*.py")
    if not any(part in OUTSIDE or part.startswith(".") for part in file.relative_to(ROOT).parts)
)


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def is_gpu_kernel(function: Function) -> bool:
    """A kernel has a parameter for each pointer, stride and block size: the language has no other way."""
    return any("triton" in ast.unparse(decorator) for decorator in function.decorator_list)


def parameters_of(function: Function) -> list[str]:
    """Returns the names of what a caller gives: without self and cls, and without what only `**` collects."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def test_there_are_files_to_check():
    assert {"launch.py", "messages/config.py", "supervisor/supervisor.py"} <= set(map(name_of, FILES))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_file_keeps_to_its_budget(file: Path):
    text = file.read_text()
    tree = ast.parse(text)
    num_lines = len(text.splitlines())
    assert num_lines <= MAX_FILE_LINES, f"{num_lines} lines"
    limit = MAX_KERNEL_LINES if file.is_relative_to(ROOT / "kernels") else MAX_FUNCTION_LINES
    for function in (node for node in ast.walk(tree) if isinstance(node, Function)):
        assert function.end_lineno is not None
        num_lines = function.end_lineno - function.lineno + 1
        assert num_lines <= limit, f"{function.name} (line {function.lineno}) has {num_lines} lines"
        if not is_gpu_kernel(function):
            names = parameters_of(function)
            assert len(names) <= MAX_PARAMETERS, f"{function.name} (line {function.lineno}) has {len(names)} parameters"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_file_says_what_it_is(file: Path):
    tree = ast.parse(file.read_text())
    assert ast.get_docstring(tree), "a module opens with one sentence: what it owns"
    parts = {part.removesuffix(".py").lower() for part in file.relative_to(ROOT).parts}
    assert not parts & EMPTY_FILE_NAMES
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            assert not node.name.endswith(EMPTY_CLASS_ENDINGS), f"class {node.name} (line {node.lineno})"
