"""Prints the files of ours that some files import, directly or not, with their lines of code.

python -m tests.import_closure scheduler_proc/process.py [--without scheduler_proc/ranks.py] [--cuts]
"""

import argparse
import ast
from collections.abc import Iterable, Sequence
from functools import cache

from tests.code_lines import ROOT, count_lines

PACKAGES = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"launch"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", help="files whose imports are followed, relative to the repository's root")
    parser.add_argument("--without", nargs="+", default=[], help="files that are not followed, as if not imported")
    parser.add_argument("--cuts", action="store_true", help="print what the list would lose without each file")
    options = parser.parse_args(argv)
    if options.cuts:
        _print_cuts(options.files, options.without)
        return 0
    closure = find_closure(options.files, options.without)
    lines = {name: count_lines(ROOT / name) for name in closure}
    for name in sorted(closure):
        importers = sorted(other for other in closure if name in imports_of(other))
        print(f"{lines[name]:5}  {name}  <- {', '.join(importers)}")
    print(f"{sum(lines.values()):,} lines of code in {len(closure)} files")
    return 0


def _print_cuts(names: Sequence[str], without: Sequence[str]) -> None:
    closure = find_closure(names, without)
    lost = {name: closure - find_closure(names, [*without, name]) for name in closure - set(names)}
    lines = {name: sum(count_lines(ROOT / each) for each in files) for name, files in lost.items()}
    for name in sorted(lost, key=lambda name: -lines[name]):
        importers = sorted(other for other in closure if name in imports_of(other))
        print(f"{lines[name]:5} in {len(lost[name]):2} files  {name}  <- {', '.join(importers)}")


def find_closure(names: Iterable[str], without: Iterable[str] = ()) -> set[str]:
    """Returns these files and all files of ours that they import, except `without` and what only these import."""
    closure: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in closure and name not in without:
            closure.add(name)
            waiting += imports_of(name)
    return closure


@cache
def imports_of(name: str) -> frozenset[str]:
    """Returns the files of ours that a file imports anywhere, without each `__init__.py` that only has a docstring."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        found.update(path for module in modules for path in _files_of(module))
    return frozenset(found - {name})


def _files_of(module: str) -> list[str]:
    """Returns the file of a module, and the `__init__.py` files with code that its import runs."""
    parts = module.split(".")
    if parts[0] not in PACKAGES:
        return []
    found = [path for end in range(1, len(parts) + 1) if _has_code(path := f"{'/'.join(parts[:end])}/__init__.py")]
    file = "/".join(parts) + ".py"
    return [*found, file] if (ROOT / file).exists() else found


@cache
def _has_code(name: str) -> bool:
    return (ROOT / name).exists() and count_lines(ROOT / name) > 0


if __name__ == "__main__":
    raise SystemExit(main())
