"""What all sections are made with: result files, tables, and the line that names the source of numbers."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Result = dict[str, Any]


def make_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table of Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def name_source(result: Result, num_files: int = 1) -> str:
    """Returns the line below a table: the command, the machine and the commit; `num_files`: of as many results."""
    machine = result["machine"]
    more = f" and {num_files - 1} more like it" if num_files > 1 else ""
    vectors = f" with {machine['vectors']}" if machine.get("vectors") else ""
    return (
        f"\n`{result['command']}`{more}: {machine['cores']} cores of {machine['cpu']}{vectors}, "
        f"Python {machine['python']}, commit {result['commit']}.\n"
    )


def read_result(results: Path, name: str) -> Result:
    """Returns the result file of that name in a directory."""
    return json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
