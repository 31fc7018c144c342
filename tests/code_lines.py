"""Lines of code of the product, by what they are for: without blank lines, comments and docstrings.

python -m tests.code_lines
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PLACES: dict[str, tuple[str, ...]] = {
    "frontend": ("frontend",),
    "tokenizer, encoder and detokenizer": ("tokenizer_proc", "encoder_proc", "detokenizer_proc"),
    "scheduler": ("scheduler_proc",),
    "CPU backend": ("kernels/cpu", "scheduler_proc/computing/backends/cpu"),
    "GPU backend": ("kernels/gpu", "scheduler_proc/computing/backends/cuda"),
    "operations and references": ("kernels",),
    "messages": ("messages",),
    "process runtime": ("runtime",),
    "launcher": ("launch.py", "sluice", "supervisor"),
    "extras": ("extras",),
}
"""Where each begins; the longest prefix of a file's path decides."""

BUDGET = 80_560
"""The most lines of code, of core and extras together. A commit that changes it contains nothing else, and gives the
reason, and what was taken out instead."""

VENDOR = "vendor"
"""A folder of this name has the files of libraries, as a tool fetched them: they are not code of the product."""

SUFFIXES = {".py", ".c", ".h", ".js", ".css", ".html"}

NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def count_lines(path: Path) -> int:
    """Returns the lines of code of a Python file, or of a file in a language with C's comments."""
    text = path.read_text(encoding="utf-8")
    return _count_python(text) if path.suffix == ".py" else _count_c(text)


def count_groups() -> Counter[str]:
    """Returns the lines of code of each group."""
    counts: Counter[str] = Counter()
    for place in {place.split("/")[0] for places in PLACES.values() for place in places}:
        for path in [ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.*"):
            group = find_group(path.relative_to(ROOT).as_posix())
            if group is not None and path.suffix in SUFFIXES and VENDOR not in path.parts:
                counts[group] += count_lines(path)
    return counts


def find_group(name: str) -> str | None:
    """Returns the group of a file of the product, `None` for tests, benchmarks and tools."""
    found = [
        (len(place), group)
        for group, places in PLACES.items()
        for place in places
        if name == place or name.startswith(f"{place}/")
    ]
    return max(found)[1] if found else None


def _count_python(text: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        # A string on its own is a docstring, or describes the line before it.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            assert node.end_lineno is not None
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def _count_c(text: str) -> int:
    return sum(bool(line.strip()) for line in C_COMMENT.sub("", text).splitlines())


def main() -> int:
    counts = count_groups()
    for group in PLACES:
        sys.stdout.write(f"{counts[group]:7,}  {group}\n")
    sys.stdout.write(f"{counts.total():7,} of {BUDGET:6,}  together\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
