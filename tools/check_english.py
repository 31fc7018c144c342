"""Finds constructions that read as translated, in comments, docstrings, messages, pages and the names of Python code.

`python tools/check_english.py [PATHS]` prints each as `file:line: text: advice`, and fails if it finds any. It ignores
quoted text, code in backquotes and addresses, and in tests all strings except docstrings. No line can be excused: a
pattern that finds good English is corrected here.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".py", ".pyi", ".c", ".h", ".cu", ".js", ".mjs", ".css", ".md", ".toml", ".yml", ".yaml", ".service", ".sh"}
NAMES = {"Makefile", "Dockerfile", "run"}
"""Files without a suffix that are read, too."""
SKIPPED = {"node_modules", "build", "dist", "__pycache__", "typings", "golden", "assets"}

PARTICIPLE = (
    r"(?:\w+ed|begun|bound|built|chosen|done|drawn|found|given|gone|held|kept|known|laid|left|lost|made|put|read|run|seen|sent|"
    r"set|shown|spent|started|taken|told|thrown|written)"
)
START = r"(?:(?<=\A)|(?<=[.!?;:] )|(?<=[.!?;:]  ))"
"""Where a sentence or a clause begins."""

RESULT = (
    r"(?:[Rr]aises(?: [^\s,]+)?(?: \(\d+\))?|`x{4}`|\bNone|\b(?:is|are) \d+|\b\d{3}|\b[012]|\b[Nn]othing|\bempty|"
    r"\b[Aa]lso|\beven|\bskipped|\bskips the test|\b[Nn]ever|\belse|\b[Tt]rue|\b[Ff]alse|\b[Uu]nset|\bmissing)"
)
"""Ends of a clause whose condition follows; "`xxxx`" is `None` when masked."""


@dataclass(frozen=True)
class Pattern:
    """A construction, and what a native engineer writes in its place."""

    name: str
    expression: str
    """A match of the group `good`, if there is one, is left alone."""

    advice: str


PATTERNS = (
    Pattern(
        "has done",
        rf"\A(?:Has|Have) (?!to |been |not |{PARTICIPLE}\b)[\w`'-]+",
        "name the action: `Does X`, `Makes the launcher do X`",
    ),
    Pattern(
        "of first", START + r"Of (?!course\b)\w+", "start with the noun: `Of the rows, the last` is `The last row`"
    ),
    Pattern(
        "those of",
        START
        + r"(?:(?:Those|That|The ones?) (?:of|who|whose|which)|Those (?:that|in|with|without|from|at|on|for|to))\b",
        "name the noun: `Those of a request` is `A request's tokens`",
    ),
    Pattern(
        "so many",
        r"\b[Ss]o (?:many|much)\b(?! (?:\w+ ){0,4}that\b)|\bas (?:many|much)(?: [\w-]+){0,3} as there (?:is|are)\b",
        "give the number's name: `num_draft_tokens`, `this many bytes`, `up to n`",
    ),
    Pattern(
        "tells",
        r"\b(?:[Tt]ells?(?! me\b)|[Tt]elling|(?<!be )[Tt]old)\b(?!(?: \w+){0,4} apart\b)",
        "a program returns, sends, reports, notifies, receives; `Tells whether` is `True if`",
    ),
    Pattern("hears", r"\b(?:[Hh]ears?|[Hh]eard)\b", "a program receives a message, is notified, or sees a reply"),
    Pattern("says", r"\b(?:[Ss]ays|[Ss]aid|[Ss]aying)\b", "a program reports, states, returns, specifies, shows"),
    Pattern("beside", r"\b[Bb]eside\b", "with, next to, during, in addition to, compared with"),
    Pattern("goes on", r"\b(?:[Gg]oes|[Gg]o|[Ww]ent|[Gg]one|[Gg]oing) on\b(?! an?\b)", "continues, proceeds, resumes"),
    Pattern(
        "nobody",
        r"\b(?:[Nn]obody|[Ww]hoever|[Ww]homever|[Ss]omebody|[Aa]nybody|[Ee]verybody)\b",
        "name it: no process, the caller, each client; of people: no one, anyone",
    ),
    Pattern("but for", r"(?P<good>\bnot for [^.;:]*\bbut for\b)|\b[Bb]ut for\b", "except, other than, without"),
    Pattern(
        "what is",
        START + r"What (?:is|was|are|were|has|have|had|comes|came|follows|remains|stands|lies)\b(?![^.!?]*\?)",
        "use the noun: `What is left` is `The remaining tokens`",
    ),
    Pattern(
        "where",
        r"\b[Ww]here (?:there (?:is|are|was|were)|none|nothing|it is (?:there|not)|they are (?:there|not))\b|"
        + RESULT
        + " where\\b",
        "if: `Raises X where` is `Raises X if`, `0 where there is none` is `0 if there is none` or `0 without one`",
    ),
)

NAME = Pattern(
    "name",
    r"(?:^|_)(?:tell|tells|told|hears?|heard(?!_s$)|beside|given|wanted|nobody|whoever|somebody|says?|said|go(?:es|ne)?_on|"
    r"but_for)(?:_|$)|^_?(?:note|noted)(?:_|$)|^_?most_(?!common)",
    "a name in the field's words: reports, receives, requested, continues, `record_x`, `max_x`",
)
"""A function's, class's, parameter's or variable's. `heard_s` is a field of `/requests`."""

C_TOKEN = re.compile(
    r"/\*(?P<block>.*?)\*/|//(?P<line>[^\n]*)|"
    r"(?P<string>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Finding:
    """A construction in a file: `text` is the match with a few words around it."""

    path: Path
    line: int
    name: str
    text: str
    advice: str


class Prose:
    """A run of text whose lines remember where they stood in their file."""

    def __init__(self) -> None:
        self.text = ""
        self._starts: list[int] = []
        self._lines: list[int] = []

    def add(self, line: int, text: str) -> None:
        """Appends a line of the file, joined by a space to the line before."""
        text = text.strip()
        if self.text and text:
            self.text += " "
        self._starts.append(len(self.text))
        self._lines.append(line)
        self.text += text

    def line_at(self, offset: int) -> int:
        """Returns the file's line that holds this offset of the text."""
        return self._lines[bisect_right(self._starts, offset) - 1]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the findings of the files, or only their counts; returns 1 if there are any."""
    arguments = _parser().parse_args(argv)
    paths = [Path(path) for path in arguments.paths] or [ROOT]
    findings = [finding for path in _files(paths) for finding in check(path)]
    if arguments.count:
        _print_counts(findings)
    else:
        for finding in findings:
            print(f"{_shown(finding.path)}:{finding.line}: [{finding.name}] {finding.text}: {finding.advice}")
    print(f"{len(findings)} constructions to replace" if findings else "English: nothing to replace")
    return 1 if findings else 0


def check(path: Path) -> list[Finding]:
    """Returns the constructions in the prose of this file, in its order."""
    source = path.read_text(encoding="utf-8", errors="replace")
    found = [
        Finding(path, prose.line_at(match.start()), pattern.name, _surroundings(masked, match), pattern.advice)
        for prose in prose_of(path, source)
        for masked in [mask(prose.text)]
        for pattern in PATTERNS
        for match in re.finditer(pattern.expression, masked)
        if not match.groupdict().get("good")
    ]
    if path.suffix == ".py":
        found += [
            Finding(path, line, NAME.name, name, NAME.advice)
            for line, name in sorted(_defined_names(source))
            if re.search(NAME.expression, name)
        ]
    return sorted(found, key=lambda finding: finding.line)


def _defined_names(source: str) -> set[tuple[int, str]]:
    """Returns the names that the code defines, with their lines."""
    names: set[tuple[int, str]] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add((node.lineno, name))
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.add((node.lineno, name))
            case _:
                pass
    return names


def mask(text: str) -> str:
    """Returns the text with all that is quoted, code or an address replaced, at the same offsets."""
    quoted = r"``[^`]+``|`[^`]+`|\"[^\"]*\"|“[^”]*”|(?<!\w)'[^']+'(?!\w)|\]\([^)]*\)|https?://\S+|\S+/\S+\.\w+"
    return re.sub(quoted, lambda match: re.sub(r"[\w ]", "x", match[0]), text)


def prose_of(path: Path, source: str) -> Iterator[Prose]:
    """Yields what a reader reads of a file: comments, docstrings, messages, or a page's paragraphs."""
    if path.suffix in {".py", ".pyi"}:
        in_tests = "tests" in path.resolve().parts or path.name == "conftest.py"
        yield from _python_prose(source, with_messages=not in_tests)
    elif path.suffix == ".md":
        yield from _markdown_prose(source)
    elif path.suffix in {".c", ".h", ".cu", ".js", ".mjs", ".css"}:
        yield from _c_prose(source)
    else:
        yield from _hash_prose(source)


def _python_prose(source: str, with_messages: bool) -> Iterator[Prose]:
    tree = ast.parse(source)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.add(id(node.value))
            yield from _paragraphs(source.splitlines()[node.lineno - 1 : node.end_lineno], node.lineno)
    if with_messages:
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                yield from _message(node.lineno, node.value)
    comments = [
        (token.start[0], token.string, token.line.lstrip().startswith("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    yield from _joined((line, text.lstrip("#: "), alone) for line, text, alone in comments)


def _message(line: int, text: str) -> Iterator[Prose]:
    """Yields a string literal if it has several words."""
    if len(re.findall(r"[A-Za-z]{2,} ", text)) >= 2:
        prose = Prose()
        prose.add(line, " ".join(text.split()))
        yield prose


def _joined(comments: Iterable[tuple[int, str, bool]]) -> Iterator[Prose]:
    """Yields comments (line, text, whether nothing else is on the line); consecutive lines are joined."""
    prose, last = Prose(), -1
    for line, text, alone in comments:
        if prose.text and (line != last + 1 or not alone):
            yield prose
            prose = Prose()
        prose.add(line, text)
        last = line if alone else -1
    yield prose


def _paragraphs(lines: Sequence[str], first_line: int) -> Iterator[Prose]:
    """Yields the paragraphs of a docstring, without its quotes."""
    prose = Prose()
    for number, line in enumerate(lines, first_line):
        text = re.sub(r'^[rRbBfF]?"""|"""$', "", line.strip()).strip()
        if not text or re.match(r"[-*] |\d+\. ", text):
            yield prose
            prose = Prose()
        prose.add(number, re.sub(r"^[-*] ", "", text))
    yield prose


def _markdown_prose(source: str) -> Iterator[Prose]:
    """Yields paragraphs, items and cells of tables; no headings and no blocks of code."""
    prose, in_code = Prose(), False
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if text.startswith(("```", "~~~")):
            in_code = not in_code
        if in_code or not text or text.startswith(("#", "|", "```", "~~~", "<")) or re.match(r"[-*+] |\d+\. ", text):
            yield prose
            prose = Prose()
        if in_code or text.startswith(("#", "```", "~~~", "<")):
            continue
        if text.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", text):
                entry = Prose()
                entry.add(number, cell)
                yield entry
        else:
            prose.add(number, re.sub(r"^(?:[-*+>]|\d+\.) ", "", text).replace("**", ""))
    yield prose


def _c_prose(source: str) -> Iterator[Prose]:
    """Yields comments and messages of C, JavaScript and CSS; consecutive `//` lines as one."""
    comments: list[tuple[int, str, bool]] = []
    for match in C_TOKEN.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        if match["string"] is not None:
            yield from _message(line, match["string"][1:-1])
            continue
        alone = not source[source.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
        for number, text in enumerate((match["block"] or match["line"] or "").split("\n"), line):
            comments.append((number, text.strip().lstrip("*/ "), alone))
    yield from _joined(comments)


def _hash_prose(source: str) -> Iterator[Prose]:
    """Yields comments that begin with `#` (Makefile, shell, TOML, YAML)."""
    matches = ((number, re.search(r"(^|\s)#+ (.*)", line), line) for number, line in enumerate(source.splitlines(), 1))
    yield from _joined((number, match[2], line.lstrip().startswith("#")) for number, match, line in matches if match)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            entries = sorted(entry for entry in path.iterdir() if entry.name not in SKIPPED and not entry.is_symlink())
            yield from _files([entry for entry in entries if entry.name == ".ci" or not entry.name.startswith(".")])
        elif path.suffix in SUFFIXES or path.name in NAMES:
            yield path


def _surroundings(text: str, match: re.Match[str]) -> str:
    """Returns the match with a few words around it."""
    before = text[max(0, match.start() - 30) : match.start()]
    after = text[match.end() : match.end() + 40]
    return (before + "«" + match[0] + "»" + after).strip()


def _print_counts(findings: Sequence[Finding]) -> None:
    directories = Counter("/".join(_shown(finding.path).split("/")[:2]) for finding in findings)
    for name, count in directories.most_common():
        print(f"{count:6} {name}")
    print()
    for name, count in Counter(finding.name for finding in findings).most_common():
        print(f"{count:6} {name}")


def _shown(path: Path) -> str:
    absolute = path.resolve()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Find constructions that read as translated.")
    parser.add_argument("paths", nargs="*", help="files and directories; default: the whole repository")
    parser.add_argument("--count", action="store_true", help="print counts by directory and by pattern")
    return parser


if __name__ == "__main__":
    sys.exit(main())
